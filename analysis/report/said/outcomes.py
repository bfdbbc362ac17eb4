"""How the runs ended: as the study expected, which is a result, or otherwise."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING

from analysis.report.said.ran import span
from analysis.report.said.sentence import Number, Sentence
from analysis.stats import grouped
from analysis.wording import group_name, listed
from model.record.units import counted

if TYPE_CHECKING:
    from analysis.report.backends import Backends
    from analysis.report.facts import Facts, Row

MEANING = {
    "oom_gpu": "out of GPU memory",
    "oom_host": "out of host memory",
    "unsupported": "the backend reports that it cannot run there",
    "diverged": "a loss that is not finite",
    "timeout": "the time limit",
    "preempted": "stopped by the scheduler",
    "node_failed": "the machine failed",
    "cancelled": "stopped by a person",
    "failed": "an error",
    "lost": "no trace of how it ended",
}


def expected(runs: Sequence[Row]) -> list[Sentence]:
    """How many runs completed as expected, and each kind of failure that the study expected."""
    if any(run["imported"] for run in runs):
        return _ends_of_logs(runs)
    met = [run for run in runs if run["outcome"] and run["outcome"] == run["expected_outcome"]]
    done = [run for run in met if run["outcome"] == "completed"]
    ended = [run for run in met if run["outcome"] != "completed"]
    kinds = (
        (because, mine) for (_, because), mine in grouped(ended, itemgetter("outcome", "because")).items()
    )
    found = [_ended(mine, f"as the study expected{_why(because)}") for because, mine in kinds]
    if not done:
        return found
    meant = sum(run["expected_outcome"] == "completed" for run in runs)
    if len(done) == len(runs):
        said = "Every run completed, as the study expected."
    elif len(done) == meant:
        said = f"{len(done):,d} of {counted(len(runs), 'run')} completed, as the study expected."
    else:
        said = f"{len(done):,d} of the {counted(meant, 'run')} that the study expected to complete did."
    return [Sentence(said, (Number("runs completed", len(done), None, None, "runs"),)), *found]


def _ends_of_logs(runs: Sequence[Row]) -> list[Sentence]:
    """Which logs go on to their last step. Nobody expected that, and few say how many were planned."""
    done = [run for run in runs if run["outcome"] == "completed"]
    endless = [run for run in done if run["planned_steps"] is None]
    found = []
    if reached := len(done) - len(endless):
        goes = "goes" if reached == 1 else "go"
        text = f"{reached:,d} of {counted(len(runs), 'log')} {goes} on to the last planned step."
        found.append(Sentence(text, (Number("logs with all steps", reached, None, None, "runs"),)))
    if endless:
        which = "its log ends" if len(endless) == 1 else "their logs end"
        steps = span({run["steps"] for run in endless})
        text = (
            f"Whether {counted(len(endless), 'run')} completed is unknown: {which} at step {steps}, and "
            "nothing says how many steps were planned."
        )
        number = Number("logs without a planned end", len(endless), None, None, "runs")
        found.append(Sentence(text, (number,)))
    return found


def _how(run: Row) -> str:
    """What makes the end of a run an unexpected one."""
    if run["imported"]:
        return (run["reason"] or "as its log says").rstrip(".")
    return f"where the study expected `{run['expected_outcome']}`{_why(run['reason'])}"


def _why(because: str | None) -> str:
    return f": {because.rstrip('.')}" if because else ""


def out_of_memory(facts: Facts) -> list[Sentence]:
    """Backends that had no memory enough for attention alone. That is a result."""
    return list(
        _untimed(facts, ("oom_gpu", "oom_host"), "ran out of memory in {runs} and was not timed there.")
    )


def _untimed(facts: Facts, outcomes: Sequence[str], said: str) -> Iterator[Sentence]:
    """Of attention alone, by backend and outcome; a backend that is unsupported says so itself."""
    kinds: dict[tuple[str, str], set[str]] = {}
    for row in facts.kernels:
        if row["outcome"] in outcomes:
            kinds.setdefault((row["attention"], row["outcome"]), set()).add(row["run_id"])
    for (backend, outcome), runs in kinds.items():
        text = said.format(runs=counted(len(runs), "run"), outcome=outcome)
        number = Number(f"runs in which {backend} ended as {outcome}", len(runs), None, None, "runs")
        yield Sentence(f"{group_name(backend)} {text}", (number,))


def unexpected(facts: Facts, trust: Backends) -> list[Sentence]:
    """Other ends than the expected ones, wrong backends, and errors in imported logs."""
    other = [run for run in facts.runs if run["outcome"] and run["outcome"] != run["expected_outcome"]]
    kinds = grouped(other, itemgetter("outcome", "expected_outcome", "reason"))
    ends = [_ended(mine, _how(mine[0])) for mine in kinds.values()]
    return [
        *ends,
        *_without_times(facts),
        *_wrong(trust),
        *_untimed(facts, ("wrong", "failed"), "was not timed in {runs}: it ended as `{outcome}`."),
        *(Sentence(f"Wrong in an imported log: {said}") for said in facts.in_logs["error"]),
    ]


def _without_times(facts: Facts) -> Iterator[Sentence]:
    """Runs of attention alone that completed, but left no record of what they timed."""
    known = {row["run_id"] for row in facts.kernels}
    lost = [run for run in facts.runs if run["outcome"] == "completed" and run["run_id"] not in known]
    if facts.calls and lost:
        one = len(lost) == 1
        text = f"{counted(len(lost), 'completed run')} {'has' if one else 'have'} no times: "
        text += f"{'its' if one else 'their'} `kernels.json` is missing or holds none."
        yield Sentence(text, (Number("completed runs without times", len(lost), None, None, "runs"),))


def _wrong(trust: Backends) -> Iterator[Sentence]:
    for row in trust.wrong:
        where = f" on {row['device_name']}" if row["device_name"] else ""
        failed = f"{row['failed']:,d} of {row['checks']:,d} checks of its certificate failed"
        yield Sentence(f"{group_name(row['attention'])} computes attention wrongly{where}: {failed}.")


def _ended(runs: Sequence[Row], rest: str) -> Sentence:
    """`math` ended as `oom_gpu` (out of GPU memory), 3 runs, ..."""
    outcome = runs[0]["outcome"]
    meaning = f" ({MEANING[outcome]})" if outcome in MEANING else ""
    groups = listed(list(dict.fromkeys(group_name(run["label"]) for run in runs)))
    text = f"{groups} ended as `{outcome}`{meaning} in {counted(len(runs), 'run')}, {rest}."
    number = Number(
        f"runs of {groups} that ended as {outcome}".replace("`", ""), len(runs), None, None, "runs"
    )
    return Sentence(text, (number,))
