"""The FLOP per token and the peak that a log implies, and which of several is right.

Printed rates imply them: FLOP per token = tflops x 1e12 x GPUs / tokens per second, peak = tflops / mfu. The
formula is that of model.measure.flops; a count that differs from it is explained where it equals a known
mistake.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from analysis.logs.mapping import Mapping
from analysis.logs.points import Between, Point
from analysis.logs.steps import common, implied, tokens_per_step
from model.measure.flops import flop_per_token, peak
from model.record.config import ModelConfig
from model.record.units import counted

_BY_CHANCE = 1e-4  # relative: of a count that is known less well, no model is guessed
LOW, HIGH = "flop_per_token_low", "flop_per_token_high"  # what the printed digits leave open
RIGHT = "6 N + 12 L H Q T, N without the input embedding"


@dataclass(frozen=True)
class Counts:
    """What is known about FLOP per token and peak.

    Attributes:
        flop_per_token: by the formula where the shape is known, else as stated or printed.
        peak_flops: of one GPU in FLOP/s: as stated, of the GPU's name, or printed.
        printed: what the log implies by itself, and plain means over all of its records.
        count: what the log's FLOP per token can be, by its digits; None if it implies none.
    """

    flop_per_token: int | None
    flop_source: str
    peak_flops: float | None
    peak_source: str
    printed: dict[str, float]
    count: Between | None


def counts_of(points: Sequence[Point], mapping: Mapping) -> Counts:
    """What a log implies and its mapping states."""
    printed = dict(_printed(points, mapping))
    flop, flop_source = _flop(mapping, printed)
    peak_flops, peak_source = _peak(mapping, printed)
    count = Between(printed[LOW], printed[HIGH]) if LOW in printed else None
    return Counts(flop, flop_source, peak_flops, peak_source, printed, count)


def _printed(points: Sequence[Point], mapping: Mapping) -> Iterator[tuple[str, float]]:
    gpus = max(1, mapping.constants.gpus or 1)
    if flops := implied(points, "tflops", "tokens_per_second", 1e12 * gpus):
        yield "flop_per_token", median(value for _, value, _ in flops)
        possible = common(between for _, _, between in flops)
        yield LOW, possible.low
        yield HIGH, possible.high
    if peaks := implied(points, "tflops", "mfu", 1e14):
        yield "peak_flops", median(value for _, value, _ in peaks)
    for name in ("tokens_per_second", "mfu", "tflops"):
        if found := [value for point in points if (value := point.get(name)) is not None]:
            yield name, fmean(found)


def _flop(mapping: Mapping, printed: dict[str, float]) -> tuple[int | None, str]:
    if computed := formula(mapping):
        return computed, f"computed from the shape in the mapping: {RIGHT}"
    if stated := mapping.constants.flop_per_token:
        return stated, "the mapping"
    found = printed.get("flop_per_token")
    return (round(found), "the log: tflops / tokens_per_second") if found else (None, "unknown")


def formula(mapping: Mapping) -> int | None:
    """FLOP per token of the shape that the mapping states; None if it states none."""
    shape, length = mapping.config.model, mapping.config.train.sequence_length
    return flop_per_token(shape.model_config_of(), length) if shape and length else None


def _peak(mapping: Mapping, printed: dict[str, float]) -> tuple[float | None, str]:
    constants, dtype = mapping.constants, mapping.config.train.dtype
    if constants.peak_tflops:
        return constants.peak_tflops * 1e12, "the mapping"
    if constants.gpu and dtype and (known := peak(constants.gpu, dtype)):
        return known.flops, known.source
    found = printed.get("peak_flops")
    return (found, "the log: tflops / mfu") if found else (None, "unknown")


@dataclass(frozen=True)
class Explained:
    """What a printed FLOP per token counts, in words, and what it should be."""

    what: str
    right: int


def explained(count: Between, mapping: Mapping, tokens: int | None) -> Explained | None:
    """What a printed FLOP per token counts; None if it equals nothing that is known.

    Where no shape is stated, the 8B llama of `model.record.config` is tried, at each sequence length that the
    tokens per step allow: a count of many digits does not equal another model's by chance.
    """
    shape = mapping.config.model
    if shape is None and count.high > count.low * (1 + _BY_CHANCE):
        return None
    model = shape.model_config_of() if shape else ModelConfig()
    length = mapping.config.train.sequence_length
    per_step = tokens_per_step(mapping) or tokens
    lengths = [length] if length else [per_step // batch for batch in (1, 2, 4, 8, 16)] if per_step else []
    for each in lengths:
        for what, value in _known(model, each):
            if count.holds(value):
                about = f"{what}, for {_named(model, stated=shape is not None)} at T = {each:,}"
                return Explained(about, flop_per_token(model, each))
    return None


def _known(model: ModelConfig, length: int) -> Iterator[tuple[str, int]]:
    right, embedding = flop_per_token(model, length), 6 * model.vocab_size * model.dim
    attention = 12 * model.layers * model.heads * model.head_dim * length
    yield RIGHT, right
    yield (
        f"6 N + 12 L H Q T with the input embedding in N, {embedding / 1e9:.2f} GFLOP too many (as counted "
        "by code that no longer finds the embedding, for example after torch.compile)",
        right + embedding,
    )
    yield "6 N alone, without the attention", right - attention
    yield "6 N alone, with the input embedding in N and without the attention", right + embedding - attention
    yield "half of the attention's FLOP, as if a causal mask were discounted", right - attention // 2


def _named(model: ModelConfig, stated: bool) -> str:
    parts = f"{counted(model.layers, 'layer')}, {counted(model.heads, 'head')}"
    shape = f"dim {model.dim}, {parts}, ffn_dim {model.ffn_dim}"
    origin = " (as the mapping states)" if stated else ""
    return f"the llama with {shape}, vocabulary {model.vocab_size}{origin}"
