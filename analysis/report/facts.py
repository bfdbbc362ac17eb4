"""What a report says in words and tables: the study's runs, its groups, and where they ran."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

from analysis import stats
from analysis.charts import kernel_fp8
from analysis.query.ask import answer
from analysis.query.statements import (
    COMPLETED_RUNS,
    DECODED_RUNS,
    FRONTIERS,
    KERNEL_TIMES,
    KERNEL_TIMES_AND_GONE,
    MEASURED_RUNS,
    PROBES,
)
from analysis.report.rows import AttemptRow, ColumnComment, Run, UnreadFile, UntimedRow
from analysis.stats.estimate import median_of_known
from analysis.store.database import quoted
from analysis.verdicts.groups import final_loss, peak_memory_gib
from analysis.verdicts.guard import in_logs
from analysis.verdicts.profiles import PROFILED
from analysis.verdicts.savings import memory_saved, time_saved
from analysis.verdicts.values import Row, commit, devices, shown_outcome, software
from analysis.wording import group_name
from model.record.units import counted

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

_LONG = 40  # characters of a name, beyond which a sentence has the group's number

RUNS_SQL = """\
SELECT r.*,
  r.tokens_per_step / q.step_seconds_75 AS tokens_per_second_low,
  r.tokens_per_step / q.step_seconds_25 AS tokens_per_second_high,
  a.why, a.command, a.version, a.study_file, a.tokenizer, a.overridden, a.scale_description,
  a.reported_elsewhere, a.label AS given_label, q.highest_learning_rate,
  a.position AS position_in_root
FROM runs r
JOIN run_records a ON a.study = r.study AND a.run_id = r.run_id
LEFT JOIN run_measures q ON q.study = r.study AND q.run_id = r.run_id
WHERE r.study = $study
ORDER BY r.place, r.seed, r.repeat, r.run_id"""
_ATTEMPTS_SQL = "SELECT * FROM attempts WHERE study = $study ORDER BY run_id, attempt"
_QUARANTINE_SQL = "SELECT path, reason FROM quarantine WHERE study = $study ORDER BY path"
_DICTIONARY_SQL = """\
SELECT table_name, column_name, lower(data_type) AS type, comment FROM duckdb_columns()
WHERE table_name IN ('runs', CASE WHEN EXISTS (FROM kernels WHERE study = $study) THEN 'kernels'
    WHEN EXISTS (FROM probes WHERE study = $study) THEN 'probes' ELSE 'steps' END)
  AND NOT internal AND database_name <> 'temp'
ORDER BY table_name, column_index"""
_REMOVED_SQL = "SELECT run_id, differs FROM removed_runs WHERE study = $study ORDER BY run_id"
_REPORTED_SQL = "SELECT * FROM reported WHERE study = $study ORDER BY place, label, entry"
_UNTIMED_SQL = """\
SELECT attention, dtype, string_agg(DISTINCT direction, ', ' ORDER BY direction DESC) AS directions,
  string_agg(DISTINCT mode, ', ' ORDER BY mode) AS modes, outcome, reason, count(DISTINCT run_id) AS runs,
  string_agg(DISTINCT run_id, ' ' ORDER BY run_id) AS run_ids
FROM kernels JOIN deciding_attempts USING (study, run_id, attempt)
WHERE study = $study AND outcome <> 'completed'
GROUP BY attention, dtype, outcome, reason ORDER BY attention, dtype, outcome, reason"""
MOST_KINDS = 3  # of runs that a sentence about removed ones tells apart
# By name, what a report carries besides the queries of its figures and tables.
QUERIES = {
    "attempts": _ATTEMPTS_SQL, "quarantine": _QUARANTINE_SQL, "columns": _DICTIONARY_SQL,
    "removed": _REMOVED_SQL, "reported": _REPORTED_SQL,
    "decoded_runs": DECODED_RUNS, "untimed": _UNTIMED_SQL, "kernels": KERNEL_TIMES,
    "kernels_and_gone": KERNEL_TIMES_AND_GONE, "profiled": PROFILED,
    "frontiers": FRONTIERS, "probes": PROBES,
}  # fmt: skip


@dataclass(frozen=True)
class GroupFacts:
    """Runs that differ only in seed and repeat.

    Attributes:
        label: what charts call it.
        runs: how many there are; `n` of them completed with a measured rate.
        tokens_per_second, mfu: medians with intervals; None if not measured.
        peak_memory_gib: median over completed runs, with its interval.
        final_loss: median over the seeds of completed runs, with its interval.
        training_seconds: of its steps alone, with the first: median over completed runs, with its interval.
        other_seconds: of its attempts beside these steps: start-up, checkpoints, repeated steps, the end.
        prefill_milliseconds, decode_milliseconds: of a prompt and of a decoded position, with intervals.
        floor_percentage, decode_floor_percentage: medians over completed runs; None if not measured.
        time_saved, memory_saved: percent of its baseline's, where others report theirs; None if not measured.
    """

    label: str
    runs: int
    n: int
    tokens_per_second: stats.Estimate | None
    mfu: stats.Estimate | None
    peak_memory_gib: stats.Estimate | None
    final_loss: stats.Estimate | None
    training_seconds: stats.Estimate | None = None
    other_seconds: float | None = None
    prefill_milliseconds: stats.Estimate | None = None
    decode_milliseconds: stats.Estimate | None = None
    floor_percentage: float | None = None
    decode_floor_percentage: float | None = None
    time_saved: stats.Estimate | None = None
    memory_saved: stats.Estimate | None = None


@dataclass(frozen=True)
class Facts:
    """Everything about one study that is not a figure.

    Attributes:
        untimed: backends of task attention that have no time at some shape: how they ended, and why.
        kernels: its rows of the table, of attempts that decide their runs.
        kernels_and_gone: these, and how runs without a row ended.
        eight_bits: forwards with the errors of their certificates, where any is of numbers of 8 bits.
        frontiers: of task frontier, the largest value that fits, a row for each run that probed.
        probes: their probes.
        profiles: how long the profiled steps of completed runs took beside the timed ones.
        removed: by id, what runs that the study no longer has differ in; they may be left out.
        reported: what others report of its groups, as the view `reported` has it.
    """

    study: str
    title: str
    description: str
    runs: list[Run]
    groups: list[GroupFacts]
    quarantine: list[UnreadFile]
    dictionary: list[ColumnComment]
    untimed: list[UntimedRow] = field(default_factory=list)
    kernels: list[dict[str, Any]] = field(default_factory=list)
    kernels_and_gone: list[dict[str, Any]] = field(default_factory=list)
    eight_bits: list[dict[str, Any]] = field(default_factory=list)
    profiles: list[dict[str, Any]] = field(default_factory=list)
    frontiers: list[dict[str, Any]] = field(default_factory=list)
    probes: list[dict[str, Any]] = field(default_factory=list)
    removed: dict[str, str] = field(default_factory=dict)
    reported: list[dict[str, Any]] = field(default_factory=list)

    @property
    def question(self) -> str:
        """What the study asks: its description as far as the first question mark, else its title."""
        asked, mark, _ = self.description.partition("?")
        return asked + mark if mark else self.title

    @property
    def about(self) -> str:
        """The description after its question; all of it without one, unless it is the title."""
        _, mark, rest = self.description.partition("?")
        return rest.strip() if mark or self.description == self.title else self.description

    @property
    def scales(self) -> dict[str, str]:
        """What the study says of each scale that its runs have, of those of which it says something."""
        by_scale = {run["scale"]: run["scale_description"] for run in self.runs}
        return {scale: text for scale, text in by_scale.items() if scale and text}

    @cached_property
    def labels(self) -> list[str]:
        """Every group's label, in the study's order."""
        return list(dict.fromkeys(run["label"] for run in self.runs))

    def name(self, label: str) -> str:
        """A group's name in a sentence; its number in the table where the name is as long as a sentence."""
        return group_name(label) if len(label) <= _LONG else f"group {self.labels.index(label) + 1}"

    @cached_property
    def tasks(self) -> set[str]:
        """What its runs did: `training`, `attention`."""
        return {run["task"] for run in self.runs}

    @property
    def without_steps(self) -> set[str]:
        """Labels of the groups none of whose runs did a step: they are on no figure of the training."""
        return set(self.labels) - {run["label"] for run in self.runs if run["steps"]}

    @cached_property  # asked for in every row of a table
    def imported(self) -> set[str]:
        """Labels of the groups whose runs another program made."""
        return {run["label"] for run in self.runs if run["imported"]}

    @cached_property  # asked for in every row of a table
    def flagged(self) -> dict[str, str]:
        """The checks that the logs of a group fail, by its label: `loss`, or `clock, values`."""
        failed = {label: in_logs(runs)["error"].values() for label, runs in stats.by_label(self.runs).items()}
        return {label: ", ".join(dict.fromkeys(checks)) for label, checks in failed.items() if checks}

    @property
    def in_logs(self) -> dict[str, dict[str, str]]:
        """What was found in imported logs, by level: sentences that name the logs, each with its check."""
        return in_logs(self.runs)

    @cached_property  # asked for in every row of a table
    def repeated(self) -> bool:
        """Whether any configuration runs several times."""
        return any(run["repeat"] > 1 for run in self.runs)

    @cached_property  # asked for in every row of a table
    def ordered(self) -> bool:
        """Whether any run has a place in the order of starting."""
        return any(run["position"] is not None for run in self.runs)


def endings(runs: Iterable[Row]) -> list[str]:
    """Number of runs by outcome, and whether it was expected: `1 oom_gpu as expected`."""
    kinds = Counter((shown_outcome(run), run["outcome"] == run["expected_outcome"]) for run in runs)
    ordered = sorted(kinds.items(), key=lambda kind: (kind[0][0] != "completed", -kind[1], kind[0][0] or ""))
    ends = []
    for (outcome, expected), count in ordered:
        end = f"{outcome} {'as expected' if expected else 'unexpected'}"
        if outcome is None:
            end = "without an outcome yet"
        elif outcome in ("completed", "unknown") and expected:
            end = f"{outcome}{' outcome' if outcome == 'unknown' else ''}"
        ends.append(f"{count} {end}")
    return ends


def literal(sql: str, study: str) -> str:
    """The query with the study's name in place of `$study`, as it can be run by hand."""
    return sql.replace("$study", quoted(study))


def rows(connection: DuckDBPyConnection, sql: str, study: str) -> list[dict[str, Any]]:
    """A query's rows for one study; JSON columns are parsed."""
    return answer(connection, literal(sql, study)).parsed()


def snapshot(connection: DuckDBPyConnection, study: str) -> None:
    """Compute a study's runs once for all queries of this connection that follow."""
    connection.execute("CREATE TEMP TABLE runs_once AS FROM runs WHERE study = $study", {"study": study})
    connection.execute("DROP VIEW IF EXISTS temp.main.runs")  # hides some of them, which it has done now
    connection.execute("ALTER TABLE runs_once RENAME TO runs")


def gather(connection: DuckDBPyConnection, study: str) -> Facts:
    """Read the facts of a study that has at least one run."""
    runs = cast("list[Run]", rows(connection, RUNS_SQL, study))
    history: dict[str, list[AttemptRow]] = {run["run_id"]: [] for run in runs}
    for attempt in cast("list[AttemptRow]", rows(connection, _ATTEMPTS_SQL, study)):
        history.get(attempt["run_id"], []).append(attempt)
    for run in runs:
        run["history"] = history[run["run_id"]]
    measured, decoded = (rows(connection, sql, study) for sql in (COMPLETED_RUNS, DECODED_RUNS))
    rates = stats.estimates(measured, stats.rate("tokens_per_second"))
    mfus = stats.estimates([row for row in measured if row["mfu"] is not None], stats.rate("mfu"))
    prefills, positions = (stats.estimates(timed, lambda _row, s: 1e3 * s) for timed in (measured, decoded))
    theirs = rows(connection, _REPORTED_SQL, study)
    savings = ("time_saved_percentage", "memory_saved_percentage")
    are_saved = any(row[name] is not None for row in theirs for name in savings)
    pairs = rows(connection, MEASURED_RUNS, study) if are_saved else []
    of_time, of_memory = (
        {saving.label: saving.percent for saving in saved(pairs)} for saved in (time_saved, memory_saved)
    )
    groups = []
    for label, planned in stats.by_label(runs).items():
        done = [run for run in planned if run["outcome"] == "completed"]
        trained = [run["training_seconds"] for run in done if run["training_seconds"] is not None]
        groups.append(
            GroupFacts(
                label=label,
                runs=len(planned),
                n=rates[label].n if label in rates else 0,
                tokens_per_second=rates.get(label),
                mfu=mfus.get(label),
                peak_memory_gib=peak_memory_gib(done),
                final_loss=final_loss(done),
                training_seconds=stats.over_runs(trained) if trained else None,
                other_seconds=median_of_known(
                    max(0.0, run["wall_seconds"] - run["training_seconds"])
                    for run in done
                    if run["wall_seconds"] is not None and run["training_seconds"] is not None
                ),
                prefill_milliseconds=prefills.get(label),
                decode_milliseconds=positions.get(label),
                floor_percentage=median_of_known(run["floor_percentage"] for run in done),
                decode_floor_percentage=median_of_known(run["decode_floor_percentage"] for run in done),
                time_saved=of_time.get(label),
                memory_saved=of_memory.get(label),
            )
        )
    newest, kernels = max(runs, key=lambda run: run["created_at"]), rows(connection, KERNEL_TIMES, study)
    return Facts(
        study=study,
        title=newest["title"],
        description=newest["description"] or "",
        runs=runs,
        groups=groups,
        quarantine=cast("list[UnreadFile]", rows(connection, _QUARANTINE_SQL, study)),
        dictionary=cast("list[ColumnComment]", rows(connection, _DICTIONARY_SQL, study)),
        untimed=cast("list[UntimedRow]", rows(connection, _UNTIMED_SQL, study)),
        kernels=kernels,
        eight_bits=rows(connection, kernel_fp8.chart.sql, study) if kernel_fp8.chart.applies(kernels) else [],
        kernels_and_gone=rows(connection, KERNEL_TIMES_AND_GONE, study),
        profiles=rows(connection, PROFILED, study),
        frontiers=rows(connection, FRONTIERS, study),
        probes=rows(connection, PROBES, study),
        removed={row["run_id"]: row["differs"] for row in rows(connection, _REMOVED_SQL, study)},
        reported=theirs,
    )


def environment(runs: Iterable[Row]) -> dict[str, list[str]]:
    """Devices, software and commits of the runs, by topic. If the runs differ, every variant is listed."""
    runs = list(runs)
    started = [run for run in runs if run["device"]]
    return {
        "Device": devices(started),
        "Software": [f"{name} {' / '.join(versions)}" for name, versions in software(started).items()],
        "Commit": sorted({commit(run) for run in runs if not run["imported"]}),
    }


def missing(runs: Collection[Run]) -> list[tuple[str, str]]:
    """What to say about runs whose files are gone, and of reports: in a few words, and in full."""
    told = []
    if gone := [run["missing_since"] for run in runs if run["missing_since"]]:
        since = f"{' since' if len(gone) == 1 else ', the first since'} {min(gone):%Y-%m-%d}"
        what = f"files of {counted(len(gone), 'run')} are gone{since}; their records were kept."
        told.append(("Only in the database", what))
    if given := sum(bool(run["from_report"]) for run in runs):
        what = f"records of {counted(given, 'run')} come from a report, and not from files of their own."
        told.append(("Taken from a report", what))
    return told


def removed(facts: Facts) -> tuple[str, str] | None:
    """What to say about runs that the study no longer has: in two words, and in full; None without any."""
    here = {run["run_id"] for run in facts.runs}
    left_out = Counter(differs for run, differs in facts.removed.items() if run not in here)
    shown = Counter(differs for run, differs in facts.removed.items() if run in here)
    if left_out:
        one = left_out.total() == 1
        these = f"{counted(left_out.total(), 'run')} that the study no longer has"
        what = f"{these} {'is' if one else 'are'} left out"
        how = f"runner report {facts.study} --removed"
        return "Left out", f"{what} ({_kinds(left_out)}); {how} includes {'it' if one else 'them'}."
    if shown:
        one = shown.total() == 1
        what = f"{counted(shown.total(), 'run')} of these {'is' if one else 'are'} no longer in the study"
        return "Removed", f"{what} ({_kinds(shown)})."
    return None


def _kinds(differing: Counter[str]) -> str:
    """`2 with train.steps=6, 1 with seed=3, and 4 others`."""
    most = differing.most_common(MOST_KINDS)
    words = [f"{count} with {differs}" for differs, count in most]
    rest = differing.total() - sum(count for _, count in most)
    return ", ".join([*words, *([f"and {counted(rest, 'other')}"] if rest else [])])
