"""What others report of the study's groups, beside what its runs measured. No verdict comes from it. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from analysis.charts._kernels import Point, points
from analysis.charts._reported import ReportedMark
from analysis.stats import by_label
from analysis.stats.estimate import median_of_known
from analysis.wording import UNKNOWN, capital, in_a_row, number
from model.record.units import counted

if TYPE_CHECKING:
    from analysis.charts import Row
    from analysis.report.facts import Facts, GroupFacts
    from analysis.report.rows import Run

# Settings in which runs may differ from what the study says and still do the same work, elsewhere or for a
# shorter time. What follows from a whole run is the same only if it differs in the first of these alone, and
# what depends on the device only if that is of the same kind.
_ELSEWHERE = ("device", "data.path")
_SAME_WORK = (
    *_ELSEWHERE,
    *("data.mode", "train.learning_rate"),
    *("train.steps", "train.warmup_steps", "train.log_every"),
    *("inference.steps", "inference.warmup_steps"),
    *("call.steps", "call.backends", "call.traffic"),
)
ABOUT = (
    "Numbers that the study quotes, as they were printed, beside the medians of its own runs. The hardware "
    "may differ. They are in no comparison, ranking or verdict. Ours against theirs is ours divided by "
    "theirs; of losses and percentages it is ours minus theirs."
)
_MOST_NAMED = 4  # settings that a note names


_Ours = Callable[["GroupFacts", "Sequence[Run]", Point | None], float | None]


@dataclass(frozen=True)
class _Quantity:
    """A quantity that others report, and where ours of it is.

    Attributes:
        ours: of a group, its completed runs, and the point of attention alone; None if they have none.
        form: of ours; of bytes, of theirs in a figure.
        scale: from bytes to the unit of the figures; 1 of what is not counted in bytes.
        difference: format of ours minus theirs, of what that compares and not a ratio: losses, percentages.
        of_whole_run: whether it depends on how long the run is and what it reads.
        of_device: whether it depends on what it ran on, so that a CPU's says nothing of a GPU's.
    """

    title: str
    ours: _Ours
    form: str
    scale: float = 1.0
    difference: str = ""
    of_whole_run: bool = False
    of_device: bool = True

    def bar(self, changed: Collection[str]) -> Literal["", "work", "run", "device"]:
        """What keeps ours from being held against theirs; empty if nothing does.

        Args:
            changed: the settings in which the runs differ from what the study says.
        """
        if not set(_SAME_WORK).issuperset(changed):
            return "work"
        if self.of_whole_run and not set(_ELSEWHERE).issuperset(changed):
            return "run"
        return "device" if self.of_device and "device" in changed else ""

    def compared(self, ours: float, theirs: float) -> str:
        """Ours over theirs, or minus theirs: of percentages in points."""
        return self.difference.format(ours - theirs) if self.difference else number(ours / theirs, "#,.3g")

    def shown(self, printed: str, ours: float | None) -> tuple[str, str, str]:
        """The title with its unit, theirs with the digits that were printed, and ours: bytes in units of ten.

        Args:
            printed: theirs, as the study has it.
            ours: in the unit of the figures.
        """
        if self.scale == 1:
            return self.title, printed, number(ours, self.form)
        digits, _, exponent = printed.lower().partition("e")
        theirs, power = Decimal(printed), int(exponent or 0)
        if power not in _OF_BYTES:
            power = next((power for power in _OF_BYTES if theirs >= 10**power), min(_OF_BYTES))
        scaled = theirs.scaleb(-power) if "." in digits else theirs.scaleb(-power).normalize()
        own = None if ours is None else ours / self.scale / 10**power
        return f"{self.title}, {_OF_BYTES[power]}", f"{scaled:f}", number(own, "#,.4g")


_OF_BYTES = {12: "TB", 9: "GB", 6: "MB", 3: "kB"}  # by power of ten


def _estimated(name: str) -> _Ours:
    def ours(group: GroupFacts, _runs: Sequence[Run], _point: Point | None) -> float | None:
        estimate = getattr(group, name)
        return estimate.median if estimate else None

    return ours


def _median(name: str) -> _Ours:
    return lambda _group, runs, _point: median_of_known(run[name] for run in runs)  # type: ignore[literal-required]


def _of_call(column: str, direction: str) -> _Ours:
    return lambda _group, _runs, point: point.median(column, direction) if point else None


def _call_mebibytes(_group: GroupFacts, _runs: Sequence[Run], point: Point | None) -> float | None:
    peak_bytes = point.median("memory_bytes", "both", "eager") if point else None
    return None if peak_bytes is None else peak_bytes / 2**20


def _dram_gigabytes(_group: GroupFacts, _runs: Sequence[Run], point: Point | None) -> float | None:
    parts = [
        point.median(f"dram_{way}_bytes", direction, "eager") if point else None
        for way in ("read", "write")
        for direction in ("forward", "backward")
    ]
    return None if None in parts else sum(filter(None, parts)) / 1e9


_NATS, _POINTS = "{:+.4f}", "{:+.2f} points"  # of differences

_QUANTITIES = {
    "tokens_per_second": _Quantity("Tokens/s", _estimated("tokens_per_second"), ",.0f"),
    "mfu": _Quantity("MFU, %", _estimated("mfu"), ".2f", difference=_POINTS),
    "tflops": _Quantity("TFLOP/s", _median("tflops"), ",.2f"),
    "training_tokens_percentage": _Quantity(
        "Tokens that train, %",
        _median("training_tokens_percentage"),
        ".2f",
        difference=_POINTS,
        of_whole_run=True,
        of_device=False,
    ),
    "final_loss": _Quantity(
        "Final loss",
        _estimated("final_loss"),
        ".4f",
        difference=_NATS,
        of_whole_run=True,
        of_device=False,
    ),
    "training_seconds": _Quantity(
        "Training time, s", _estimated("training_seconds"), ",.4g", of_whole_run=True
    ),
    "prefill_milliseconds": _Quantity("Prefill, ms", _estimated("prefill_milliseconds"), "#,.4g"),
    "decode_milliseconds": _Quantity("Decoded token, ms", _estimated("decode_milliseconds"), "#,.4g"),
    "peak_memory_bytes": _Quantity("Memory", _estimated("peak_memory_gib"), ",.1f", scale=2**-30),
    "time_saved_percentage": _Quantity("Time saved, %", _estimated("time_saved"), ".2f", difference=_POINTS),
    "memory_saved_percentage": _Quantity(
        "Memory saved, %", _estimated("memory_saved"), ".2f", difference=_POINTS
    ),
    **{
        f"{direction}_{column}": _Quantity(
            f"{direction.capitalize()}, {unit}", _of_call(column, direction), "#,.4g"
        )
        for column, unit in (("milliseconds", "ms"), ("tflops", "kernel TFLOP/s"))
        for direction in ("forward", "backward", "both")
    },
    "call_memory_bytes": _Quantity("Memory of a call", _call_mebibytes, ",.1f", scale=2**-20),
    "both_dram_bytes": _Quantity("DRAM read and written", _dram_gigabytes, ",.3g", scale=1e-9),
}


class ReportedValue(NamedTuple):
    """One quantity of a group: theirs, ours, and ours over theirs or minus theirs."""

    title: str
    theirs: str
    ours: str
    ratio: str


@dataclass(frozen=True)
class ReportedLine:
    """An entry of the study's `reported`, of one group.

    Attributes:
        flags: rules that its numbers break, what they could not be held against, and what the study's author
            says of them.
        no_ratio: what has none though both numbers are there, and why; empty if all have one.
        marks: of what has a ratio to ours, or a difference, by quantity.
        run_ids: of the group; `backend`, where each of its runs calls several.
    """

    label: str
    values: tuple[ReportedValue, ...]
    hardware: str
    source: str
    read_from: str
    flags: tuple[str, ...]
    no_ratio: str
    marks: dict[str, ReportedMark]
    run_ids: tuple[str, ...]
    backend: str | None

    @property
    def read(self) -> str:
        """How the numbers were read: `read from a table`."""
        return f"read from {'the' if self.read_from == 'text' else 'a'} {self.read_from}"


def lines(facts: Facts) -> list[ReportedLine]:
    """A line for each entry and group, in the order of the study."""
    groups, runs = {group.label: group for group in facts.groups}, by_label(facts.runs)
    called = points(facts.kernels)
    return [
        _line(row, groups[row["label"]], runs[row["label"]], called)
        for row in facts.reported
        if row["label"] in groups
    ]


def _line(row: Row, group: GroupFacts, runs: Sequence[Run], called: Sequence[Point]) -> ReportedLine:
    """The line of a row of the view `reported`, beside what the group's runs measured."""
    changed = {name: change for run in runs for name, change in (run["overridden"] or {}).items()}
    done = [run for run in runs if run["outcome"] == "completed"]
    run_ids = tuple(run["run_id"] for run in runs)
    here = (point for point in called if point.attention == row["backend"] and {*point.runs} & {*run_ids})
    point = next(here, None)
    hardware = row["hardware"] if row["gpus"] == 1 else f"{row['gpus']} x {row['hardware']}"
    values, marks = list[ReportedValue](), dict[str, ReportedMark]()
    barred: dict[str, list[str]] = {}  # quantities without a ratio, by what bars it
    for name, quantity in _QUANTITIES.items():
        if row[name] is None:
            continue
        theirs, ours = row[name] * quantity.scale, quantity.ours(group, done, point)
        title, printed, own = quantity.shown(row["printed"][name], ours)
        ratio = UNKNOWN
        if ours is not None and (bar := quantity.bar(changed)):
            barred.setdefault(bar, []).append(quantity.title.partition(",")[0].lower())
        elif ours is not None:
            ratio = quantity.compared(ours, theirs)
            in_figure = printed if quantity.scale == 1 else number(theirs, quantity.form)
            marks[name] = ReportedMark(theirs, in_figure, f"{hardware}; {row['source']}")
        values.append(ReportedValue(title, printed, own, ratio))
    flags = [f"Flagged: {rule}" for rule in row["flags"]]
    flags += map(capital, row["unchecked"])
    flags += [f"Note of the study: {row['note']}"] if row["note"] else []
    return ReportedLine(
        label=f"{row['backend']}, {row['label']}" if row["backend"] else row["label"],
        values=tuple(values),
        hardware=hardware,
        source=row["source"],
        read_from=row["read_from"],
        flags=tuple(flags),
        no_ratio=_no_ratio(barred, changed),
        marks=marks,
        run_ids=run_ids,
        backend=row["backend"],
    )


def _no_ratio(barred: Mapping[str, Sequence[str]], changed: Mapping[str, Any]) -> str:
    """What has no ratio though both numbers are there, and why."""
    reasons = []
    if "work" in barred:
        other = _named([name for name in changed if name not in _SAME_WORK])
        reasons.append(f"the runs here are other work than the numbers are about, by {other}")
    if "run" in barred:
        other = _named([name for name in changed if name not in _ELSEWHERE])
        reasons.append(f"{in_a_row(barred['run'])}: the runs here differ from the study by {other}")
    if "device" in barred:
        here, there = ("GPU", "CPU") if changed["device"]["own"] == "cpu" else ("CPU", "GPU")
        words = f"the runs here are on a {here}, the numbers are about a {there}"
        reasons.append(f"what depends on the device: {words}")
    return "; ".join(reasons)


def marks(facts: Facts) -> dict[tuple[str, str | None], dict[str, tuple[ReportedMark, ...]]]:
    """What figures show of each run's group, by run and backend: what our runs measured of the same work."""
    made: dict[tuple[str, str | None], dict[str, tuple[ReportedMark, ...]]] = {}
    for line in lines(facts):
        for run_id in line.run_ids:
            own = made.setdefault((run_id, line.backend), {}) if line.marks else {}
            for name, mark in line.marks.items():
                own[name] = (*own.get(name, ()), mark)
    return made


def no_ratios(made: Sequence[ReportedLine]) -> list[str]:
    """What has no ratio though both numbers are there, and why: a sentence for each reason."""
    labels: dict[str, list[str]] = {}
    for line in made:
        if line.no_ratio:
            labels.setdefault(line.no_ratio, []).append(line.label)
    return [
        f"Without a ratio for {in_a_row(list(dict.fromkeys(groups)))}: {reason}."
        for reason, groups in labels.items()
    ]


def _named(settings: Sequence[str]) -> str:
    more = len(settings) - _MOST_NAMED
    listed = in_a_row([f"`{name}`" for name in settings[:_MOST_NAMED]])
    return f"{listed} and {counted(more, 'more setting')}" if more > 0 else listed
