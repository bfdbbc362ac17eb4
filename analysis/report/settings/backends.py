"""The table of a study's backends: what each is, its package, its verdict, and the kernels that ran. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

from analysis.report.backends import Backends, short_kernels
from analysis.report.facts import Row
from model.record.backends import described

_PYTORCH = ("at::native::", "Memset", "Memcpy")  # fills, copies and sums, which any backend launches


@dataclass(frozen=True)
class Verdict:
    """What certificates of a backend say on one device.

    Attributes:
        key: by which the page of certificates lists the first of them.
        certificates: how many say so.
        device: None where all certificates of the backend are of one.
    """

    verdict: str
    key: str
    certificates: int
    device: str | None


@dataclass(frozen=True)
class Kernels:
    """The kernels of one pass, by short names.

    Attributes:
        own: those that compute attention.
        others: how many of PyTorch's fills, copies and sums came with them.
    """

    own: tuple[str, ...]
    others: int


@dataclass(frozen=True)
class Line:
    """One backend.

    Attributes:
        summary: what it is; None for a backend of another package, which is not read.
        packages: the packages that it computes with, and their versions.
        verdicts: of its certificates; none if its runs have no valid one.
        kernels: by pass, `forward` and `backward`; none where the profiler saw nothing.
        runs: how many are planned.
        completed: how many of them completed; of runs that time attention alone, with a time of this backend.
        without: how many runs have no valid certificate, though they started or were imported.
    """

    name: str
    summary: str | None
    packages: str
    verdicts: tuple[Verdict, ...]
    kernels: dict[str, Kernels]
    runs: int
    completed: int
    without: int

    @property
    def counted(self) -> str:
        """`10 of 12`, or `12` where all completed."""
        return f"{self.runs:,d}" if self.completed == self.runs else f"{self.completed:,d} of {self.runs:,d}"


def lines(runs: Sequence[Row], trust: Backends, kernels: Sequence[Row] = ()) -> list[Line]:
    """The backends in the study's order.

    Args:
        kernels: of runs that time attention alone, their times.
    """
    done = {run["run_id"] for run in runs if run["outcome"] == "completed"}
    names = dict.fromkeys(run["attention"] for run in runs if run["attention"])
    if names:
        mine = {name: [run for run in runs if run["attention"] == name] for name in names}
        return [_line(name, mine[name], trust, done) for name in names]
    timed = {(row["attention"], row["run_id"]) for row in kernels if row["outcome"] == "completed"}
    called = dict.fromkeys(row["attention"] for row in trust.certificates)  # each run calls several
    return [_line(name, runs, trust, {run for run in done if (name, run) in timed}) for name in called]


def _line(name: str, runs: Sequence[Row], trust: Backends, done: Set[str]) -> Line:
    certificates = [row for row in trust.certificates if row["attention"] == name]
    said = described(name)
    imported = all(run["imported"] for run in runs)
    return Line(
        name=name,
        summary=said.summary if said and not imported else None,
        packages=" / ".join(dict.fromkeys(_packages(name, row, runs) for row in certificates)),
        verdicts=_verdicts(certificates),
        kernels=_kernels(certificates),
        runs=len(runs),
        completed=sum(run["run_id"] in done for run in runs),
        without=sum(len(group.runs) for group in trust.without if group.attention == name),
    )


def _verdicts(certificates: Sequence[Row]) -> tuple[Verdict, ...]:
    groups: dict[tuple[str, str], list[str]] = {}
    for row in certificates:
        groups.setdefault((row["verdict"], row["device_name"] or "no device"), []).append(row["key"])
    several = len({device for _, device in groups}) > 1
    return tuple(
        Verdict(verdict, keys[0], len(keys), device if several else None)
        for (verdict, device), keys in groups.items()
    )


def _packages(name: str, certificate: Row, runs: Sequence[Row]) -> str:
    """The packages that its certificate records for it alone, or PyTorch."""
    software: Mapping[str, str] = certificate["software"]
    common = {package for run in runs for package in run["software"] or {}}
    said = described(name)
    modules = said.modules if said else ()
    own = [package for package in software if package not in common and not package.startswith("nvidia-")]
    own += [package for package in software if package in modules or package.startswith(f"nvidia-{name}-")]
    if said and not own:
        own = [package for package in said.packages if package in software]
    if modules and not own:
        return f"version of `{modules[0]}` not recorded"
    if not modules and "torch" in software:
        own.insert(0, "torch")
    return ", ".join(f"{package} {software[package]}" for package in dict.fromkeys(own))


def _kernels(certificates: Sequence[Row]) -> dict[str, Kernels]:
    found = {}
    for each in ("forward", "backward", "decoding"):
        names = list(dict.fromkeys(name for row in certificates for name in row["kernels"].get(each, ())))
        if names:
            found[each] = _pass(names)
    return found


def _pass(names: Sequence[str]) -> Kernels:
    own = [name for name in names if not name.removeprefix("void ").startswith(_PYTORCH)]
    return Kernels(tuple(short_kernels(own or names)), len(names) - len(own) if own else 0)
