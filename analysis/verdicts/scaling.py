"""Scaling: how the rate grows with the processes of a run, at a constant batch or a constant batch a process.

Strong and weak scaling are told apart by configuration alone. A curve has the groups that differ in nothing
but the number of processes, and, where it is weak, in a batch that grows in proportion. Its first group has
the fewest processes; the rate of every other one is divided by that group's.

A process can take its samples in several parts, one after another. On a weak curve, all take as many. A
strong one joins any numbers, as fewer samples a process need fewer parts, and says where a point's differs
from the first group's. Where groups of equally many processes differ in their parts, there is a strong curve
for each way to split the samples, so that each has one first group.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal, TypeVar

from analysis.stats import grouped
from analysis.stats.estimate import median
from analysis.stats.paired import Ratio
from analysis.verdicts.groups import Group, differing, groups_of
from analysis.verdicts.guard import breaking
from analysis.verdicts.rates import ratio_of, single_runs
from analysis.verdicts.values import Row, without_threads
from analysis.wording import in_runs, withheld
from model.record.units import counted

AXES = ("replicate", "shard", "context", "tensor")  # of model.record.config.ParallelConfig
Kind = Literal["strong", "weak"]
_NOT_COMPARED = ("processes",)  # what the guard says of the very thing that a curve is about
_WAYS = {
    "replicate": "replicated (DDP)",
    "shard": "sharded (FSDP2)",
    "context": "context parallel",
    "tensor": "tensor parallel",
}
_BEYOND = 1.1  # efficiency
HELD_UP = (
    "More than ideal usually means that the runs on the fewest processes were held up, for example by other "
    "work on the machine"
)
R = TypeVar("R", bound=Mapping[str, Any])  # a row


@dataclass(frozen=True)
class ScalingPoint:
    """A group of a curve.

    Attributes:
        scale: its processes over those of the curve's first group: the ideal ratio.
        ratio: its tokens per second over those of the first group.
        observed: how many runs it is of where a single run is involved; empty for a finding over runs.
        why_withheld: why the two cannot be compared, as a sentence; None if they can.
        parts: in how many its processes take their samples, and the first group's, as a sentence; empty if
            in as many.
        besides: what else differs between the two and withholds nothing, as sentences; the parts first.
    """

    label: str
    processes: int
    scale: Fraction
    tokens_per_second: float
    ratio: Ratio
    observed: str
    why_withheld: str | None
    runs: frozenset[str]
    parts: str = ""
    besides: tuple[str, ...] = ()

    @property
    def efficiency(self) -> tuple[float, float | None, float | None]:
        """The ratio over the ideal one, as a fraction of 1, with the ends of its 95 % interval."""
        ends = (self.ratio.ratio, self.ratio.low, self.ratio.high)
        value, low, high = (end and end / float(self.scale) for end in ends)
        return value or 0.0, low, high

    @property
    def beyond_ideal(self) -> bool:
        """Whether it is faster than ideal by more than chance and a tenth."""
        value, low, _ = self.efficiency
        return not self.why_withheld and value > _BEYOND and (low is None or low > 1)

    @property
    def cost(self) -> float:
        """What a token costs over what it costs in the first group: the inverse of efficiency.

        Cost is the time of all processes together (Grama, Gupta and Kumar: Isoefficiency, IEEE Parallel and
        Distributed Technology 1, 1993).
        """
        return 1 / self.efficiency[0]


@dataclass(frozen=True)
class Curve:
    """Groups over their number of processes.

    Attributes:
        way: the axes of `parallel` that grow, in words.
        constant: what all groups have, in words.
        base: label of the first group.
        points: the first group's own apart, by their processes.
    """

    kind: Kind
    way: str
    constant: str
    base: str
    base_processes: int
    base_tokens_per_second: float
    points: tuple[ScalingPoint, ...]

    @property
    def labels(self) -> tuple[str, ...]:
        """Its groups, by their processes."""
        return (self.base, *(point.label for point in self.points))


@dataclass(frozen=True)
class Family:
    """The groups of a curve, before their rates are known.

    Attributes:
        groups: by their processes; at least two, of different numbers.
    """

    kind: Kind
    way: str
    constant: str
    groups: tuple[Group, ...]


def curves(rows: Sequence[Row]) -> tuple[Curve, ...]:
    """The scaling of one study's completed runs.

    Args:
        rows: the answer to MEASURED_RUNS.
    """
    made = []
    for family in families(rows):
        base, *others = family.groups
        few = processes(base.runs[0])
        points = []
        for group in others:
            ratio, many = ratio_of(group, base), processes(group.runs[0])
            apart = differing(_whatever_threads(group), _whatever_threads(base))
            besides = [difference for difference in apart if difference.topic not in _NOT_COMPARED]
            single, broken = single_runs(group, base, ratio), breaking(besides, "speed")
            parts = _parts_apart(group, base)
            point = ScalingPoint(
                label=group.label,
                processes=many,
                scale=Fraction(many, few),
                tokens_per_second=rate(group),
                ratio=ratio,
                observed=in_runs(single) if single else "",
                why_withheld=withheld(broken) if broken else None,
                runs=frozenset(run["run_id"] for run in (*group.runs, *base.runs)),
                parts=parts,
                besides=(
                    *([parts] if parts else []),
                    *(difference.sentence for difference in besides if "speed" not in difference.breaks),
                ),
            )
            points.append(point)
        made.append(
            Curve(family.kind, family.way, family.constant, base.label, few, rate(base), tuple(points))
        )
    return tuple(made)


def families(rows: Sequence[Row]) -> tuple[Family, ...]:
    """The groups that make a curve, strong ones first; empty in a study without runs of several processes.

    Args:
        rows: of the view `runs`, with JSON columns parsed.
    """
    if not any(row["config"].get("parallel") for row in rows):
        return ()
    alike = grouped(groups_of(rows).values(), lambda group: _settings(group.runs[0]))
    kinds: tuple[Kind, ...] = ("strong", "weak")
    return tuple(family for kind in kinds for groups in alike.values() for family in _families(kind, groups))


def longer(rows: Sequence[R]) -> list[R]:
    """The runs, completed or not, of a study of sequence length over processes that share a sample's tokens.

    They are alike but for the length and the processes along `context`. Empty where only one of the two
    varies, or fewer than two lengths have such processes.
    """
    sharing = [row for row in rows if set(parallel(row)) <= {"context"}]
    alike = grouped(sharing, lambda row: _settings(row, ("accumulate", "sequence_length")))
    return [
        row
        for runs in alike.values()
        if len({run["sequence_length"] for run in runs if parallel(run)}) > 1
        and len({processes(run) for run in runs}) > 1
        for row in runs
    ]


def parallel(run: Row) -> dict[str, int]:
    """Processes along each axis along which there are several."""
    given = run["config"].get("parallel") or {}
    return {axis: given[axis] for axis in AXES if given.get(axis, 1) > 1}


def processes(run: Row) -> int:
    """All of a run's, which `runs.processes` is."""
    return int(run["processes"] or 1)


def parts_of(run: Row) -> int:
    """Parts in which a process takes its samples of a batch, one after another."""
    return int(run["config"].get("train", {}).get("accumulate", 1))


def _way(run: Row) -> str:
    """How its processes share the work, in words; empty for a process that is alone."""
    return " x ".join(_WAYS[axis] for axis in parallel(run)) + once(run)


def once(run: Row) -> str:
    """What is said about parameters that are gathered once a step; empty where they are gathered again."""
    return "" if (run["config"].get("parallel") or {}).get("reshard", True) else ", gathered once"


def _settings(run: Row, left_out: Collection[str] = ("batch_size", "accumulate")) -> str:
    """All that groups have in common, apart from these settings of their training."""
    config = {name: value for name, value in run["config"].items() if name not in ("parallel", "seed")}
    train = {name: value for name, value in config.get("train", {}).items() if name not in left_out}
    return json.dumps([config | {"train": train}, run["scale"]], sort_keys=True)


def _families(kind: Kind, groups: Sequence[Group]) -> Iterable[Family]:
    def constant(group: Group) -> Fraction:  # samples of a step, of all processes or of each
        run = group.runs[0]
        return Fraction(run["batch_size"], processes(run) if kind == "weak" else 1)

    ways = dict.fromkeys(way for group in groups if (way := _way(group.runs[0])))
    for way in ways:
        alike = [group for group in groups if _way(group.runs[0]) in (way, "")]
        for samples, same in grouped(alike, constant).items():
            words = f"{float(samples):.4g} sample{'' if samples == 1 else 's'} a step"
            words += " and process" if kind == "weak" else ""
            for split, line in _lines(kind, same):
                ordered = sorted(line, key=lambda group: processes(group.runs[0]))
                yield Family(kind, way, words + split, tuple(ordered))


def _lines(kind: Kind, groups: Sequence[Group]) -> Iterable[tuple[str, list[Group]]]:
    """The groups that are on a line together, with how a process splits its samples of a step, in words.

    On a weak line, into as many parts. On a strong one, into any number; but where that varies at one number
    of processes, into as many parts or parts of as many samples, whichever leaves more groups on a line. A
    line has several numbers of processes.
    """

    def at_once(run: Row) -> Fraction:  # samples of such a part
        split = parallel(run)
        parts = split.get("replicate", 1) * split.get("shard", 1) * parts_of(run)
        return Fraction(run["batch_size"], parts)

    each = " a process" if kind == "strong" else ""  # the constant of weak scaling is one of a process
    by_parts = grouped(groups, lambda group: f", in {counted(parts_of(group.runs[0]), 'part')}{each}")
    splits = {(processes(group.runs[0]), parts_of(group.runs[0])) for group in groups}
    varies = len(splits) > len({many for many, _ in splits})
    if {parts for _, parts in splits} == {1} or (kind == "strong" and not varies):
        by_split = [{"": [*groups]}]
    elif kind == "weak":
        by_split = [by_parts]
    else:
        by_split = [by_parts, grouped(groups, lambda group: f", {float(at_once(group.runs[0])):.4g} at once")]
    lines = [
        [
            (words, line)
            for words, line in split.items()
            if len({processes(group.runs[0]) for group in line}) > 1
        ]
        for split in by_split
    ]
    return max(lines, key=lambda split: sum(len(line) for _, line in split))


def _parts_apart(group: Group, base: Group) -> str:
    """In how many parts their processes take their samples, as a sentence; empty if in as many."""
    ours, theirs = (parts_of(side.runs[0]) for side in (group, base))
    if ours == theirs:
        return ""
    text = f"{group.label} takes the samples of a process in {counted(ours, 'part')}"
    return f"{text}, {base.label} in {theirs}."


def _whatever_threads(group: Group) -> Group:
    """The group with device names that do not count threads: on a CPU, processes share the machine's."""
    return Group(group.label, [{**run, "device": without_threads(run["device"])} for run in group.runs])


def rate(group: Group) -> float:
    """Tokens per second of a group, all processes together: of the median run."""
    return 1 / median(list(group.seconds.values()))
