"""Inference: prompts that are read, and tokens that are decoded after the last of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from analysis.query.statements import INFERENCE_SUMMARY
from analysis.report.answer import AnswerParts, headline, limits, ran, verdicts
from analysis.report.overview import OverviewColumn, PanelSpec, TableCell, estimated, median_cell
from analysis.report.rows import Run
from analysis.report.tasks import CarriedTable, Cite, GroupColumn, ReportTask, RunColumn, WriteupParts
from analysis.report.tasks._llama import (
    AGAINST_BASELINE,
    DATA,
    MEMORY,
    MEMORY_PANEL,
    MFU,
    MFU_PANEL,
    MODEL,
    OUTCOME,
    RATES_NOTE,
    RUN_RATES,
    N,
)
from analysis.report.topics import Setting, SetupTopic, lines, setting, whole
from analysis.wording import number
from model.record.units import counted

if TYPE_CHECKING:
    from analysis.report.answer.statement import Sentence, VerdictRow
    from analysis.report.comparison import StudyComparison
    from analysis.report.facts import Facts

_SECTION = "inference"


def _settings(runs: Sequence[Run]) -> Iterator[Setting]:
    yield from lines("Model", MODEL, runs)
    yield from lines("Inference", _TOPICS, runs)
    yield from lines("Data", DATA, runs)


def _decoded(run: Run) -> str | None:
    tokens = setting(_SECTION, "new_tokens")(run)
    if not tokens:
        return None if tokens is None else "nothing"
    graphs = ", in CUDA graphs" if setting(_SECTION, "cuda_graphs")(run) else ""
    return f"{counted(tokens, 'token')}, greedily, with a KV cache{graphs}"


def _precision(run: Run) -> str | None:
    dtype, of_attention = (setting(_SECTION, name)(run) for name in ("dtype", "attention_dtype"))
    return f"{dtype}, prompts' attention in {of_attention}" if of_attention not in (None, "dtype") else dtype


def _compiled(run: Run) -> str | None:
    chosen = setting(_SECTION, "compile")(run)
    return None if chosen is None else "yes, block by block; decoding is eager" if chosen else "no"


_TOPICS = (
    SetupTopic("Prompt length", whole(setting(_SECTION, "prompt_length")), ("inference.prompt_length",)),
    SetupTopic("Batch", whole(setting(_SECTION, "batch_size")), ("inference.batch_size",)),
    SetupTopic("Decoded after the last prompts", _decoded, ("inference.new_tokens", "inference.cuda_graphs")),
    SetupTopic("Prefills", whole(setting(_SECTION, "steps")), ("inference.steps",)),
    SetupTopic("Prefills of warm-up", whole(setting(_SECTION, "warmup_steps")), ("inference.warmup_steps",)),
    SetupTopic("Precision", _precision, ("inference.dtype", "inference.attention_dtype")),
    SetupTopic("`torch.compile`", _compiled, ("inference.compile",)),
)


def _headlines(facts: Facts, comparison: StudyComparison, rows: Sequence[VerdictRow]) -> Iterator[Sentence]:
    prefills = {
        group.label: f"{number(group.prefill_milliseconds.median, '#,.3g')} ms a prefill"
        for group in facts.groups
        if group.prefill_milliseconds
    }
    yield from headline.rates(facts, comparison, rows, "prompt tokens/s", prefills)
    decoding = {group.label: group.decode_milliseconds for group in facts.groups}
    ranked = {frozenset(pair) for ranking in comparison.decoding for pair in ranking.verdicts}
    against = {}
    for pair in comparison.rates.compared:
        own, base = decoding.get(pair.label), decoding.get(pair.baseline)
        if own and base:
            change = number(100 * (own.median / base.median - 1), "+,.1f")
            untested = "" if {pair.label, pair.baseline} in ranked else ", not tested"
            against[pair.label] = f"{change} % against {facts.name(pair.baseline)}{untested}"
    yield from headline.ends(
        facts,
        decoding,
        "ms a token",
        {},
        comparison.decoding,
        ("shortest time", "longest"),
        most=False,
        before="Decoding: ",
        beside=against,
    )


def _latencies(runs: Sequence[Run], cite: Cite) -> Iterator[str]:
    steps = sorted({run["warmup_steps"] for run in runs if run["step_seconds"] is not None})
    if not steps:
        yield "No prefill was measured."
        return
    yield (
        "A prefill reads the whole prompt of each sample up to the logits of its last position, timed by "
        f"the device's own clock; the first {' or '.join(map(str, steps))} of a run do not count. A run's "
        f"latency is the median of its prefills, of which its rate is derived{cite('hoefler2015')}."
    )
    if any(run["decode_seconds"] for run in runs):
        yield (
            "Tokens are decoded greedily with a cache of keys and values; each position is timed in the "
            "second of two passes."
        )
    if palm := cite("chowdhery2022palm"):
        yield (
            "Model FLOPs utilisation is that of the forward alone, $(2N + 2VD/T + 4LHQT)$ times tokens per "
            f"second over the peak of the data sheet{palm}; $N$ leaves out the "
            "input embedding and the output head, whose $VD$ parameters count for the last token of a prompt."
        )


TASK = ReportTask(
    name="inference",
    settings=_settings,
    answer=AnswerParts(
        ran=ran.prompted,
        headlines=_headlines,
        limits=limits.of_inference,
        observed=verdicts.decoding,
        rate="prompt tokens per second",
    ),
    writeup=WriteupParts(
        references=("touvron2023llama",),
        methods=_latencies,
        last=GroupColumn(
            "Decoded token, ms",
            lambda group: group.decode_milliseconds,
            "#,.4g",
            "the last column the median over the decoded positions",
        ),
    ),
    columns=(
        OverviewColumn("Prefill, ms", estimated(lambda group: group.prefill_milliseconds, "#,.4g")),
        OverviewColumn(
            "Prefill floor, %", lambda line: TableCell(number(line.group.floor_percentage, ".1f"))
        ),
        # Its interval is that of the milliseconds.
        OverviewColumn(
            "Prompt tokens/s",
            lambda line: median_cell(line.group.tokens_per_second, ",.0f"),
        ),
        *AGAINST_BASELINE,
        MFU,
        OverviewColumn("Decoded token, ms", estimated(lambda group: group.decode_milliseconds, "#,.4g")),
        OverviewColumn(
            "Token floor, %", lambda line: TableCell(number(line.group.decode_floor_percentage, ".1f"))
        ),
        MEMORY,
        N,
        OUTCOME,
    ),
    panels=(
        PanelSpec("Prefill, ms", "prefill", lambda line: line.group.prefill_milliseconds, "#,.3g"),
        PanelSpec(
            "Decoded token, ms",
            "decoding",
            lambda line: line.group.decode_milliseconds,
            "#,.3g",
            absent="In this study the runs only read prompts.",
        ),
        MFU_PANEL,
        MEMORY_PANEL,
    ),
    run_columns=(
        *RUN_RATES,
        RunColumn(
            "Decoded token, ms",
            lambda run: number(1000 * run["decode_seconds"] if run["decode_seconds"] else None, "#,.4g"),
        ),
    ),
    run_note=RATES_NOTE,
    passes="forward only, of a prompt",
    measured="times",
    used="is used",
    not_used="is not used",
    metrics={
        "inference_summary": CarriedTable(
            INFERENCE_SUMMARY,
            "Medians over the completed runs of each group, without the warm-up: of a prefill, which "
            "reads the whole prompt of each sample, and of a decoded position, which is one token of "
            "each sample. Tokens per second and model FLOPs utilisation are those of prefills, "
            "forward only. Floors are the least times by what the same device was measured to reach, "
            "in percent of the median times.",
        )
    },
)
