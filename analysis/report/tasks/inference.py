"""Inference: prompts that are read, and tokens that are decoded after the last of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from analysis.query.statements import INFERENCE_SUMMARY
from analysis.report.render import interval, number
from analysis.report.rows import Run
from analysis.report.tasks import GroupColumn, ReportTask, RunColumn
from analysis.report.tasks._llama import (
    DATA,
    GROUP_MEMORY,
    GROUP_MFU,
    GROUP_RATE,
    GROUP_TIER,
    MODEL,
    RATES_NOTE,
    RUN_RATES,
    middle,
)
from analysis.report.topics import Setting, SetupTopic, lines, plain, setting, whole
from model.record.units import counted

_SECTION = "inference"


def _settings(runs: Sequence[Run]) -> Iterator[Setting]:
    yield from lines("Model", MODEL, runs)
    yield from lines("Inference", _TOPICS, runs)
    yield from lines("Data", DATA, runs)


def _decoded(run: Run) -> str | None:
    tokens = setting(_SECTION, "new_tokens")(run)
    if not tokens:
        return None if tokens is None else "nothing"
    return f"{counted(tokens, 'token')}, greedily, with a KV cache"


def _compiled(run: Run) -> str | None:
    chosen = setting(_SECTION, "compile")(run)
    return None if chosen is None else "yes, block by block; decoding is eager" if chosen else "no"


def _milliseconds_per_token(run: Run) -> str:
    return number(1000 * run["decode_seconds"] if run["decode_seconds"] else None, "#,.4g")


_TOPICS = (
    SetupTopic("Prompt length", whole(setting(_SECTION, "prompt_length")), ("inference.prompt_length",)),
    SetupTopic("Batch", whole(setting(_SECTION, "batch_size")), ("inference.batch_size",)),
    SetupTopic("Decoded after the last prompts", _decoded, ("inference.new_tokens",)),
    SetupTopic("Prefills", whole(setting(_SECTION, "steps")), ("inference.steps",)),
    SetupTopic("Prefills of warm-up", whole(setting(_SECTION, "warmup_steps")), ("inference.warmup_steps",)),
    SetupTopic("Precision", plain(setting(_SECTION, "dtype")), ("inference.dtype",)),
    SetupTopic("`torch.compile`", _compiled, ("inference.compile",)),
)
TASK = ReportTask(
    name="inference",
    settings=_settings,
    group_columns=(
        GroupColumn("Prefill, ms", lambda group, _: middle(group.prefill_milliseconds, "#,.4g")),
        GroupColumn("Interval", lambda group, _: interval(group.prefill_milliseconds, "#,.4g"), True),
        GroupColumn("Floor, %", lambda group, _: number(group.floor_percentage, ".1f")),
        GROUP_RATE,
        GROUP_TIER,
        GROUP_MFU,
        GROUP_MEMORY,
    ),
    run_columns=(*RUN_RATES, RunColumn("Decoded token, ms", _milliseconds_per_token)),
    run_note=RATES_NOTE,
    passes="forward only, of a prompt",
    measured="times",
    used="is used",
    not_used="is not used",
    metrics={"inference_summary": INFERENCE_SUMMARY},
)
