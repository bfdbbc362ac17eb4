"""The frontier: the largest value of each group that fits, beside the forecast, and every probe."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from analysis.charts.frontier import UNITS, by_value, cards, is_coarse, largest, outermost
from analysis.report.answer import AnswerParts, limits
from analysis.report.answer.statement import Number, Sentence
from analysis.report.overview import GroupLine, OverviewColumn, PanelSpec, TableCell, group_lines, outcome
from analysis.report.rows import Run
from analysis.report.tasks import Cite, ReportTask, RunColumn, WriteupParts
from analysis.report.tasks._llama import MODEL, gib
from analysis.report.topics import Setting, SetupTopic, lines, plain, setting, whole
from analysis.stats import Estimate, grouped
from analysis.wording import group_name, listed, number
from model.record.units import counted

if TYPE_CHECKING:
    from analysis.charts import Row
    from analysis.report.answer.statement import VerdictRow
    from analysis.report.comparison import StudyComparison
    from analysis.report.facts import Facts
    from analysis.verdicts.guard import Difference

_SECTION = "frontier"
_NAMED = 3  # values that the answer names; of more it has the ends
_GIB = 1024.0**3


@dataclass(frozen=True)
class FrontierLine:
    """A group, and the frontiers of its runs: one of each, as they differ by seed and repeat alone."""

    group: GroupLine
    frontiers: Sequence[Row]

    def cell(self, text: Callable[[Row], str], small: Callable[[Row], str] = lambda _row: "") -> TableCell:
        """What each of them says, each different text once."""
        texts = dict.fromkeys(text(row) for row in self.frontiers)
        asides = dict.fromkeys(filter(None, (small(row) for row in self.frontiers)))
        return TableCell(" / ".join(texts), " / ".join(asides)) if texts else TableCell()

    def value(self, name: str, find: str = "", unit: float = 0) -> Estimate | None:
        """The smallest of the runs' values, of what is sought; None where it is of another quantity."""
        known = [
            row[name] / unit if unit else row[name]
            for row in self.frontiers
            if row[name] is not None and (not find or row["find"] == find)
        ]
        return Estimate(min(known), None, None, len(known), "none: single searches") if known else None


def _lines(facts: Facts, verdicts: Sequence[VerdictRow]) -> dict[str, FrontierLine]:
    by_label = grouped(facts.frontiers, lambda row: row["label"])
    groups = group_lines(facts, verdicts)
    return {label: FrontierLine(line, by_label.get(label, ())) for label, line in groups.items()}


def _bound(row: Row) -> str:
    if row["bound"] is None:
        return "none tried" if row["largest"] != row["most"] else "none: the most that may be tried"
    return f"{row['bound']:,d} ({row['bound_outcome']})"


def _gib(size: int | None) -> str:
    return number(None if size is None else size / _GIB, ",.2f")


def _column(
    head: str,
    text: Callable[[Row], str],
    small: Callable[[Row], str] = lambda _row: "",
    is_text: bool = False,
) -> OverviewColumn:
    return OverviewColumn(head, lambda line: line.cell(text, small), is_text)


def _panel(title: str, name: str, find: str, instead: PanelSpec | None = None) -> PanelSpec:
    return PanelSpec(
        title, _SECTION, lambda line: line.value(name, find), ",d", "No value that was tried fits.",
        instead=instead,
    )  # fmt: skip


def _panels(title: str, name: str) -> PanelSpec:
    """Of what is sought; of several quantities, the first."""
    spec = None
    for find, unit in reversed(UNITS.items()):
        spec = _panel(f"{title}, {unit}", name, find, spec)
    assert spec
    return spec


def _ran(facts: Facts) -> Sentence:
    sought = [UNITS[find] for find in UNITS if any(row["find"] == find for row in facts.frontiers)]
    done = sum(run["outcome"] == "completed" for run in facts.runs)
    probes = len(facts.probes)
    text = f"The most {listed(sought) or 'that fits'} was sought in {counted(len(facts.runs), 'run')}"
    of_them = "" if done == len(facts.runs) else f", of which {done:,d} completed"
    memory = f" ({cards(facts.frontiers)})" if facts.frontiers else ""
    numbers = {"runs": len(facts.runs), "completed runs": done, "probes": probes}
    return Sentence(
        f"{text}{memory}{of_them}, by {counted(probes, 'probe')} of three training steps of a llama.",
        tuple(Number(what, what.split()[-1], value) for what, value in numbers.items()),
    )


def _headlines(
    facts: Facts, _comparison: StudyComparison, _verdicts: Sequence[VerdictRow]
) -> Iterator[Sentence]:
    for find, unit in UNITS.items():
        known = [row for row in facts.frontiers if row["find"] == find and row["largest"] is not None]
        if not known:
            continue
        texts = by_value(known)
        shown = texts if len(texts) <= _NAMED else outermost(known)
        named = {label for labels in shown.values() for label in labels}
        told = listed(
            [f"{text} {unit} under {listed([*map(group_name, labels)])}" for text, labels in shown.items()]
        )
        if between := {row["label"] for row in known} - named:
            told += f", and between these under {counted(len(between), 'more group')}"
        errors = sorted(
            row["foreseen_error_percentage"] for row in known if row["is_bounded"] and not is_coarse(row)
        )
        by = " to ".join(dict.fromkeys(f"{error:+.1f}" for error in (errors[:1] + errors[-1:])))
        numbers = [
            Number(f"largest that fits, {row['label']}", unit, row["largest"])
            for row in {row["label"]: row for row in known}.values()
            if row["label"] in named
        ]
        off = f"; the forecast was off by {by} %" if by else ""
        yield Sentence(f"The most that fits is {told}{off}.", tuple(numbers))


def _limits(
    facts: Facts, _comparison: StudyComparison, differences: Sequence[Difference]
) -> Iterator[Sentence]:
    yield from limits.differ(differences, limits.MACHINES)
    yield Sentence("Fitting is of three steps on random tokens, without audits, checkpoints or a profile.")
    yield from _repeated(facts.frontiers)
    if any(row["memory_fraction"] < 1 for row in facts.frontiers):
        yield Sentence(
            "A smaller card is emulated by a limit on this one's memory: a card of that size has other "
            "kernels, another context of CUDA, or another machine around it."
        )
    if open_ended := {row["label"]: row for row in facts.frontiers if not row["is_bounded"]}:
        names = listed([group_name(label) for label in open_ended])
        yield Sentence(f"Whether more fits under {names}: the next probe hung or died, or there was none.")
    if coarse := {row["label"]: row for row in facts.frontiers if is_coarse(row)}:
        names = listed([group_name(label) for label in coarse])
        yield Sentence(f"Under {names} the search ended before the frontier was as exact as was asked.")
    if holes := [row for row in facts.frontiers if row["holes"]]:
        names = listed([group_name(row["label"]) for row in holes])
        yield Sentence(f"Under {names} some values below the largest do not fit: fitting is not monotone.")


def _repeated(frontiers: Sequence[Row]) -> Iterator[Sentence]:
    """How far the searches of a group agree, where it has several, and why another may end elsewhere."""
    by_label = grouped(frontiers, lambda row: row["label"])
    several = {label: rows for label, rows in by_label.items() if len(rows) > 1}
    if once := len(by_label) - len(several):
        what = f"Of {counted(once, 'group')} the frontier" if several else "Each frontier"
        yield Sentence(f"{what} was sought once: another search may end elsewhere.")
    texts, numbers = [], []
    for label, rows in several.items():
        ends = Counter(map(largest, rows))
        ((most, alike),) = ends.most_common(1)
        others = listed([text for text in ends if text != most])
        elsewhere = f", the others at {others}" if others else ""
        texts.append(f"{alike} of {len(rows)} under {group_name(label)} ended at {most}{elsewhere}")
        numbers.append(Number(f"searches of {label} that agree", "searches", alike))
    if texts:
        yield Sentence(f"Of repeated searches, {'; '.join(texts)}.", tuple(numbers))
    if any((row["device"] or "").startswith("CPU") for row in frontiers):
        yield Sentence(
            "On a CPU a probe is held to the resident memory of its process, which varies from one process "
            "to the next: near the frontier, a value may fit in one search and not in another."
        )


def _settings(runs: Sequence[Run]) -> Iterator[Setting]:
    # The FLOP per token grow with what is sought.
    model = [_up_to("layers", topic) for topic in MODEL if topic.title != "FLOP per token"]
    yield from lines("Model", model, runs)
    yield from lines("Frontier", _TOPICS, runs)


def _up_to(find: str, topic: SetupTopic) -> SetupTopic:
    """The topic; where it follows from what is sought, its value is that of the most that may be tried."""
    if topic.title not in ("Parameters", "Layers", "Sequence length", "Batch"):
        return topic

    def text(run: Run) -> str | None:
        most = topic.text_of(run)
        return f"up to {most}" if most and setting(_SECTION, "find")(run) == find else most

    return topic._replace(text_of=text)


def _share(run: Run) -> str | None:
    share = setting(_SECTION, "memory_fraction")(run)
    if share is None:
        return None
    return "all" if share == 1 else f"{100 * share:.3g} %, which emulates a smaller card"


def _yes(name: str) -> Callable[[Run], str | None]:
    def words(run: Run) -> str | None:
        chosen = setting(_SECTION, name)(run)
        return None if chosen is None else "yes" if chosen else "no"

    return words


def _key(name: str) -> tuple[str]:
    return (f"{_SECTION}.{name}",)


_TOPICS = (
    SetupTopic("Sought", plain(setting(_SECTION, "find")), _key("find")),
    SetupTopic("In multiples of", whole(setting(_SECTION, "multiple")), _key("multiple")),
    SetupTopic("Memory", _share, _key("memory_fraction")),
    _up_to(
        "sequence_length",
        SetupTopic("Sequence length", whole(setting(_SECTION, "sequence_length")), _key("sequence_length")),
    ),
    _up_to("batch_size", SetupTopic("Batch", whole(setting(_SECTION, "batch_size")), _key("batch_size"))),
    SetupTopic("Parts of a batch", whole(setting(_SECTION, "accumulate")), _key("accumulate")),
    SetupTopic("Precision", plain(setting(_SECTION, "dtype")), _key("dtype")),
    SetupTopic("Loss", plain(setting(_SECTION, "loss")), _key("loss")),
    SetupTopic("Optimizer", plain(setting(_SECTION, "optimizer")), _key("optimizer")),
    SetupTopic("Activations recomputed", _yes("checkpoint_activations"), _key("checkpoint_activations")),
    SetupTopic("`torch.compile`", _yes("compile"), _key("compile")),
    SetupTopic("Seconds per probe", whole(setting(_SECTION, "probe_seconds")), _key("probe_seconds")),
)


def _outcome(line: Any) -> TableCell:
    return outcome(line.group)


def _methods(_runs: Sequence[Run], _cite: Cite) -> Iterator[str]:
    yield (
        "A probe is a process of its own that trains three steps on random tokens. The first is of the "
        "largest value that fits by a forecast from the configuration; then the gap between a value that "
        "fits and one that does not is halved, and some values above that one are tried as well. A value "
        "fits if all steps were done without a retry of the allocator and, with what CUDA uses beside it, "
        "within the memory. A probe that hung or died says nothing of its value."
    )


_VALUES = (
    _column("Sought", lambda row: UNITS[row["find"]], is_text=True),
    _column("Largest that fits", largest),
    _column("Forecast", lambda row: f"{row['foreseen']:,d}"),
    _column(
        "Its error, %",
        lambda row: number(None if is_coarse(row) else row["foreseen_error_percentage"], "+.1f"),
    ),
    _column("Next that does not", _bound, is_text=True),
)
TASK = ReportTask(
    name="frontier",
    settings=_settings,
    answer=AnswerParts(ran=_ran, headlines=_headlines, limits=_limits),
    writeup=WriteupParts(
        references=("touvron2023llama",),
        methods=_methods,
        columns=_VALUES,
        note="The largest value that fits in each group, in the order of the study, and the smallest one "
        "above that of which a probe did not. The forecast's error is in percent of the largest.",
    ),
    lines=_lines,
    columns=(
        *_VALUES,
        _column("Peak GiB", lambda row: _gib(row["peak_bytes"])),
        _column("Its forecast, GiB", lambda row: _gib(row["forecast_bytes"])),
        _column("Error, %", lambda row: number(row["forecast_error_percentage"], "+.1f")),
        _column(
            "Probes",
            lambda row: str(row["probes"]),
            lambda row: f"{row['unknown']} hung or died" if row["unknown"] else "",
        ),
        OverviewColumn("Outcome", _outcome, is_text=True),
    ),
    panels=(
        _panels("Largest that fits", "largest"),
        _panels("Forecast", "foreseen"),
        PanelSpec(
            "Peak GiB at the largest", _SECTION, lambda line: line.value("peak_bytes", unit=_GIB), ",.2f"
        ),
        PanelSpec("Probes", _SECTION, lambda line: line.value("probes"), ",d"),
    ),
    run_columns=(RunColumn("Peak memory, GiB", gib),),
    run_note="Peak memory: of the largest probe that fits, or of the run's own process if that is larger.",
    steps="Probes",
    checked="at the sizes that its certificate names, which stand for all lengths and batches",
    used="is probed",
    not_used="is not probed",
    records="probes",
    table="probes",
    table_order="attempt, number",
    has_mfu=False,
    ranks=False,
)
