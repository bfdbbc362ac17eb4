"""The machine, the software and the code."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from analysis.report.settings.values import UNKNOWN, Of, Row, Setting, value
from analysis.verdicts import values as of

if TYPE_CHECKING:
    from analysis.report.comparison import StudyComparison
    from analysis.report.facts import Facts

_CLOCKS = {
    "power_limit_watts": "power limit {:,.0f} W",
    "sm_mhz": "GPU clock {:,.0f} MHz",
    "memory_mhz": "memory clock {:,.0f} MHz",
}
_HELD = {"power_capped_seconds": "by the power limit", "slowed_seconds": "by heat or the power supply"}


def settings(facts: Facts, comparison: StudyComparison) -> Iterator[Setting]:
    """The lines of these parts."""
    runs = [run for run in facts.runs if run["device"] or run["imported"]]
    own = [run for run in facts.runs if not run["imported"]]
    on_gpu = [run for run in runs if run["gpus"]]
    yield Setting("Device", value(runs, of.device), "", "Machine")
    yield Setting("Host", value(runs, lambda run: run["node"] and f"`{run['node']}`"), "", "Machine")
    if on_gpu:
        amd = all((run["device"] or "").startswith("AMD ") for run in on_gpu)
        why = "not measured on AMD GPUs" if amd else "not recorded"
        yield Setting("Clocks and power", value(on_gpu, _clocks, why), "", "Machine")
        yield Setting("Clock throttling", _held_back(on_gpu) or f"{UNKNOWN}: {why}", "", "Machine")
        if not facts.calls:
            yield Setting(
                "Peak for MFU", value(on_gpu, _peak, "it is in no data sheet known here"), "", "Machine"
            )
    yield Setting("Runs side by side", _side_by_side(runs), "", "Machine")
    yield Setting("Load", comparison.load, "", "Machine")
    unknown = any(run["gpus"] is None and run["imported"] for run in runs)
    driver = value(runs, of.DRIVER.of) if on_gpu or unknown else "none: no run used a GPU"
    yield Setting("Driver", driver, "", "Software")
    yield Setting("Packages", _packages(runs), "", "Software")
    yield Setting("Commit", _of_own(own, of.commit), "", "Code")
    yield Setting("Code that the jobs ran", _of_own(own, _code), "", "Code")
    yield Setting("Study file", _of_own(own, _study_file), "", "Code")


def _clocks(run: Row) -> str | None:
    known = [said.format(run[column]) for column, said in _CLOCKS.items() if run[column] is not None]
    return ", ".join(known) or None


def _held_back(runs: Sequence[Row]) -> str:
    """The largest share of a run's wall time, of which starting is a part; empty if unknown."""
    shares = {said: of.held_back(runs, column) for column, said in _HELD.items()}
    known = [
        f"{said} for at most {100 * share:.0f} % of a run's wall time"
        for said, share in shares.items()
        if share is not None
    ]
    return ", ".join(known)


def _peak(run: Row) -> str | None:
    found = of.peak(run)
    return found and f"{found} per GPU ({run['peak_source'] or 'its source was not recorded'})"


def _side_by_side(runs: Sequence[Row]) -> str:
    """The largest number of runs that were on one machine at one time."""
    changes: dict[str, list[tuple[datetime, int]]] = {}
    for run in runs:
        if None not in (run["node"], run["started_at"], run["ended_at"]):
            changes.setdefault(run["node"], []).extend([(run["started_at"], 1), (run["ended_at"], -1)])
    if not changes:
        return "unknown: not recorded"
    most = max(_most(found) for found in changes.values())
    return "no: one run at a time on each machine" if most == 1 else f"up to {most} at a time on one machine"


def _most(changes: list[tuple[datetime, int]]) -> int:
    count = most = 0
    for _, change in sorted(changes):
        count += change
        most = max(most, count)
    return most


def _packages(runs: Sequence[Row]) -> str:
    said = [f"{name} {' / '.join(versions)}" for name, versions in of.packages(runs).items()]
    return ", ".join(said) or "unknown: not recorded"


def _code(run: Row) -> str | None:
    return run["code"] and f"`{run['code'][:12]}` (SHA-256 of the snapshot)"


def _study_file(run: Row) -> str | None:
    return run["study_file"] and f"`{run['study_file']}`"


def _of_own(runs: Sequence[Row], of_run: Of) -> str:
    """What only runs of this program have."""
    return value(runs, of_run) if runs else f"{UNKNOWN}: the runs were imported"
