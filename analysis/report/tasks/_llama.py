"""What tasks that run a llama have in common: its size, its text, and columns of rates and memory."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath

from analysis.report import models
from analysis.report.overview import (
    OverviewColumn,
    PanelSpec,
    against,
    efficiency,
    estimated,
    median_cell,
    outcome,
    size,
    speedup,
    verdict,
)
from analysis.report.rows import Run
from analysis.report.tasks import RunColumn, of_run
from analysis.report.topics import SetupTopic, setting, whole
from analysis.wording import UNKNOWN, number


def _quartiles(run: Run) -> str:
    low, high = run["tokens_per_second_low"], run["tokens_per_second_high"]
    return UNKNOWN if low is None else f"{number(low, ',.0f')} {UNKNOWN} {number(high, ',.0f')}"


def gib(run: Run) -> str:
    """Peak memory."""
    size = run["peak_memory_bytes"]
    return number(None if size is None else size / 2**30, ",.1f")


RATE = OverviewColumn("Tokens/s", estimated(lambda group: group.tokens_per_second, ",.0f"))
AGAINST_BASELINE = (
    OverviewColumn("Against baseline", against),
    OverviewColumn("Verdict", verdict, is_text=True),
    OverviewColumn("Speed-up", speedup),
    OverviewColumn("Efficiency", efficiency),
)
MFU = OverviewColumn("MFU, %", lambda line: median_cell(line.group.mfu, ".1f"))
MEMORY = OverviewColumn("Peak GiB per device", lambda line: median_cell(line.group.peak_memory_gib, ",.1f"))
OUTCOME = OverviewColumn("Outcome", outcome, is_text=True)
N = OverviewColumn("n", size)
RATE_PANEL = PanelSpec("Tokens per second", "tokens", lambda line: line.group.tokens_per_second)
MFU_PANEL = PanelSpec(
    "MFU, %",
    "mfu",
    lambda line: line.group.mfu,
    ".1f",
    absent="No run has both a rate and a known peak: `peak_tflops` in the profile states it.",
)
MEMORY_PANEL = PanelSpec("Peak GiB per device", "memory", lambda line: line.group.peak_memory_gib, ",.1f")
RUN_RATES = (
    RunColumn("Tokens/s", lambda run: number(run["tokens_per_second"], ",.0f")),
    RunColumn("Quartiles", _quartiles),
    RunColumn("MFU, %", lambda run: number(run["mfu"], ".1f")),
    RunColumn("Peak memory, GiB", gib),
)
RATES_NOTE = "Tokens/s: the run's median after its warm-up, and the quartiles of its step records."


def _parameters(run: Run) -> str | None:
    count, without = models.parameters(run["config"]), models.without_embedding(run["config"])
    return None if count is None else f"{count:,d}, of which {without:,d} are not the input embedding"


def _heads(run: Run) -> str | None:
    queries, keys, dim = (setting("model", key)(run) for key in ("heads", "kv_heads", "dim"))
    if None in (queries, keys, dim):
        return None
    return f"{queries} query heads and {keys} key/value heads, each of dimension {dim // queries}"


def _flop(run: Run) -> str | None:
    count = run["flop_per_token"] or models.flop(run["config"], run["sequence_length"])
    return None if count is None else f"{count / 1e9:,.4g} GFLOP, {of_run(run).passes}"


def _text(run: Run) -> str | None:
    path = setting("data", "path")(run)
    return None if path is None else f"`{PurePath(path).name}`"


def _tokenizer(run: Run) -> str | None:
    path = run["tokenizer"] or setting("data", "tokenizer")(run)
    if path is None:
        return None
    return "bytes: one token per byte" if path == "bytes" else f"`{PurePath(path).name}`"


MODEL: Sequence[SetupTopic] = (
    SetupTopic("Parameters", _parameters),
    SetupTopic("Layers", whole(setting("model", "layers")), ("model.layers",)),
    SetupTopic("Dimension", whole(setting("model", "dim")), ("model.dim",)),
    SetupTopic("Attention heads", _heads, ("model.heads", "model.kv_heads")),
    SetupTopic("Feed-forward dimension", whole(setting("model", "ffn_dim")), ("model.ffn_dim",)),
    SetupTopic("Vocabulary", whole(setting("model", "vocab_size")), ("model.vocab_size",)),
    SetupTopic("FLOP per token", _flop),
)
_SAMPLES = {
    "pad": "one document per sample, truncated or padded",
    "pack": "documents joined and cut into full samples",
}
DATA: Sequence[SetupTopic] = (
    SetupTopic("Text", _text, ("data.path", "data.text_column")),
    SetupTopic("Fingerprint", lambda run: run["data_fingerprint"] and f"`{run['data_fingerprint']}`"),
    SetupTopic("Tokenizer", _tokenizer, ("data.tokenizer",)),
    SetupTopic("Samples", lambda run: _SAMPLES.get(setting("data", "mode")(run)), ("data.mode",)),
)
