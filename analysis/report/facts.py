"""What a report says in words and tables: the study's runs, its groups, and where they ran."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from analysis import stats
from analysis.query.ask import answer
from analysis.query.rates import COMPLETED_RUNS

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

Row = dict[str, Any]

RUNS_SQL = """\
SELECT r.*,
  r.tokens_per_step / q.slow AS tokens_per_second_low, r.tokens_per_step / q.fast AS tokens_per_second_high,
  a.why, a.command, a.version, a.data_fingerprint, a.study_file
FROM runs r
JOIN run_records a ON a.study = r.study AND a.run_id = r.run_id
LEFT JOIN (
  SELECT run_id, quantile_cont(step_seconds, 0.25) AS fast, quantile_cont(step_seconds, 0.75) AS slow
  FROM steps WHERE study = $study AND counted GROUP BY run_id
) q ON q.run_id = r.run_id
WHERE r.study = $study
ORDER BY r.label, r.seed, r.run_id"""
_ATTEMPTS_SQL = "SELECT * FROM attempts WHERE study = $study ORDER BY run_id, attempt"
_QUARANTINE_SQL = "SELECT path, reason FROM quarantine WHERE study = $study ORDER BY path"
_DICTIONARY_SQL = """\
SELECT table_name, column_name, lower(data_type) AS type, comment FROM duckdb_columns()
WHERE table_name IN ('runs', 'steps') AND NOT internal AND database_name <> 'temp'
ORDER BY table_name, column_index"""


# The views are computed from every step record each time; tables of the same names answer the same queries.
_SNAPSHOT = ("steps", "runs")


@dataclass(frozen=True)
class Group:
    """Runs that differ only in their seed.

    Attributes:
        label: what charts call it.
        runs: how many there are; `n` of them completed with a measured rate.
        tokens_per_second, mfu: medians with intervals; None if not measured.
        peak_memory_gib, final_loss: medians over completed runs.
        overlaps: labels of other groups whose throughput interval over runs overlaps this one's; None if
            this group has fewer than two measured runs and therefore no such interval.
    """

    label: str
    runs: int
    n: int
    tokens_per_second: stats.Estimate | None
    mfu: stats.Estimate | None
    peak_memory_gib: float | None
    final_loss: float | None
    overlaps: tuple[str, ...] | None


@dataclass(frozen=True)
class Facts:
    """Everything about one study that is not a figure."""

    study: str
    title: str
    description: str
    runs: list[Row]
    groups: list[Group]
    quarantine: list[Row]
    dictionary: list[Row]

    @property
    def labels(self) -> list[str]:
        """Every group's label, in order."""
        return sorted({row["label"] for row in self.runs})

    @property
    def outcomes(self) -> list[str]:
        """Number of runs by outcome, and whether it was expected: `1 oom_gpu as expected`."""
        kinds = Counter((run["outcome"], run["outcome"] == run["expected_outcome"]) for run in self.runs)
        ordered = sorted(
            kinds.items(), key=lambda kind: (kind[0][0] != "completed", -kind[1], kind[0][0] or "")
        )
        return [f"{count} {_ending(*kind)}" for kind, count in ordered]


def _ending(outcome: str | None, expected: bool) -> str:
    if outcome is None:
        return "without an outcome yet"
    if outcome == "completed" and expected:
        return outcome
    return f"{outcome} {'as expected' if expected else 'unexpected'}"


def literal(sql: str, study: str) -> str:
    """The query with the study's name in place of `$study`, as it can be run by hand."""
    return sql.replace("$study", "'" + study.replace("'", "''") + "'")


def rows(connection: DuckDBPyConnection, sql: str, study: str) -> list[Row]:
    """A query's rows for one study; JSON columns are parsed."""
    found = answer(connection, literal(sql, study))
    return [
        {
            name: json.loads(value) if document and value else value
            for name, value, document in zip(found.columns, row, found.documents, strict=True)
        }
        for row in found.rows
    ]


def snapshot(connection: DuckDBPyConnection, study: str) -> None:
    """Compute a study's steps and runs once for all queries of this connection that follow."""
    for view in _SNAPSHOT:
        connection.execute(f"CREATE TEMP TABLE {view} AS FROM {view} WHERE study = $study", {"study": study})


def gather(connection: DuckDBPyConnection, study: str) -> Facts:
    """Read the facts of a study that has at least one run."""
    runs = rows(connection, RUNS_SQL, study)
    history: dict[str, list[Row]] = {run["run_id"]: [] for run in runs}
    for attempt in rows(connection, _ATTEMPTS_SQL, study):
        history.get(attempt["run_id"], []).append(attempt)
    for run in runs:
        run["history"] = history[run["run_id"]]
    newest = max(runs, key=lambda run: run["created_at"])
    return Facts(
        study=study,
        title=newest["title"],
        description=newest["description"] or "",
        runs=runs,
        groups=_groups(runs, rows(connection, COMPLETED_RUNS, study)),
        quarantine=rows(connection, _QUARANTINE_SQL, study),
        dictionary=rows(connection, _DICTIONARY_SQL, study),
    )


def _groups(runs: list[Row], measured: list[Row]) -> list[Group]:
    speed = stats.estimates(measured, stats.rate("tokens_per_second"))
    share = stats.estimates([row for row in measured if row["mfu"] is not None], stats.rate("mfu"))
    return [_group(label, mine, speed, share) for label, mine in stats.by_label(runs).items()]


def _group(
    label: str, runs: list[Row], speed: dict[str, stats.Estimate], share: dict[str, stats.Estimate]
) -> Group:
    done = [run for run in runs if run["outcome"] == "completed"]
    mine = speed.get(label)
    return Group(
        label=label,
        runs=len(runs),
        n=mine.n if mine else 0,
        tokens_per_second=mine,
        mfu=share.get(label),
        peak_memory_gib=_median(
            run["peak_memory_bytes"] and run["peak_memory_bytes"] / 2**30 for run in done
        ),
        final_loss=_median(run["final_loss"] for run in done),
        overlaps=_overlaps(label, {name: it for name, it in speed.items() if it.n > 1}),
    )


def _overlaps(label: str, repeated: dict[str, stats.Estimate]) -> tuple[str, ...] | None:
    if label not in repeated:
        return None
    return tuple(name for name, it in repeated.items() if name != label and it.overlaps(repeated[label]))


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return stats.over_runs(known).median if known else None


def environment(runs: list[Row]) -> dict[str, list[str]]:
    """Devices, software and commits of the runs, by topic. If the runs differ, every variant is listed."""
    started = [run for run in runs if run["device"]]
    software = [run["software"] or {} for run in started]
    packages = dict.fromkeys(name for versions in software for name in versions)
    return {
        "Device": _distinct(_device(run) for run in started),
        "Software": [
            f"{name} {' / '.join(_distinct(versions[name] for versions in software if name in versions))}"
            for name in packages
        ],
        "Commit": _distinct(_commit(run) for run in runs),
    }


def differences(runs: list[Row]) -> list[str]:
    """Why the completed runs may not be comparable, one sentence per reason."""
    done = [run for run in runs if run["outcome"] == "completed"]
    found = environment(done)
    sentences = [
        f"Completed runs ran on different {what}: {', '.join(found[topic])}."
        for topic, what in (("Device", "devices"), ("Commit", "commits"))
        if len(found[topic]) > 1
    ]
    texts = {(json.dumps(run["config"]["data"]), run["data_fingerprint"]) for run in done}
    if changed := _distinct(data for data, n in Counter(data for data, _ in texts).items() if n > 1):
        paths = ", ".join(_distinct(json.loads(data)["path"] for data in changed))
        sentences.append(f"Completed runs read different texts of the same name: {paths}.")
    mixed = [entry for entry in found["Software"] if " / " in entry]
    if mixed:
        sentences.append(f"Completed runs ran with different software: {', '.join(mixed)}.")
    unsure = _distinct(run["attention"] for run in done if run["verdict"] != "right")
    if unsure:
        sentences.append(f"Completed runs of these backends have no valid certificate: {', '.join(unsure)}.")
    if any(run["git_dirty"] for run in done):
        sentences.append("Some completed runs were planned from a working tree with uncommitted changes.")
    return sentences


def missing(runs: list[Row]) -> str | None:
    """What to say about runs whose files are gone; None if all are there."""
    gone = [run["missing_since"] for run in runs if run["missing_since"]]
    if not gone:
        return None
    which = "1 run are" if len(gone) == 1 else f"{len(gone)} runs are"
    return (
        f"files of {which} gone, the first since {min(gone):%Y-%m-%d}: what they said was collected before."
    )


def _device(run: Row) -> str:
    count = f"{run['gpus']} x " if (run["gpus"] or 0) > 1 else ""
    nodes = f" on {run['nodes']} nodes" if (run["nodes"] or 1) > 1 else ""
    return f"{count}{run['device']}{nodes}"


def _commit(run: Row) -> str:
    if not run["git_sha"]:
        return "outside a repository"
    return f"{run['git_sha'][:10]}{' with uncommitted changes' if run['git_dirty'] else ''}"


def _distinct(values: Iterable[str]) -> list[str]:
    return sorted(set(values))
