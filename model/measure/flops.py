"""Floating-point operations of a training step, and the peak rates that they are compared with.

MFU follows PaLM (Chowdhery et al. 2022, appendix B): (6 N + 12 L H Q T) FLOP a token, where N counts
the parameters without the input embedding, L layers, H heads, Q head dim, T sequence length. Causality
is not discounted and recomputation does not count. N comes from the configuration, so that wrapping the
model (torch.compile, FSDP) cannot change it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from model.record.case import Case
from model.record.config import InferenceConfig, ModelConfig, RunConfig, TrainConfig
from model.record.errors import did_you_mean
from model.record.kernels import Direction
from model.record.sections import TaskSection


def parameter_count(model: ModelConfig) -> int:
    """All trainable parameters of the llama."""
    return 2 * model.vocab_size * model.dim + model.layers * block_parameters(model) + model.dim


def block_parameters(model: ModelConfig) -> int:
    """Trainable parameters of one block."""
    attention = 2 * model.dim * model.head_dim * (model.heads + model.kv_heads)
    return attention + 3 * model.dim * model.ffn_dim + 2 * model.dim


def flop_per_token(model: ModelConfig, sequence_length: int) -> int:
    """FLOP per token of a training step, forward and backward, by the formula above."""
    without_embedding = parameter_count(model) - model.vocab_size * model.dim
    attention = 12 * model.layers * model.heads * model.head_dim * sequence_length
    return 6 * without_embedding + attention


def attention_flop(case: Case, direction: Direction) -> float:
    """FLOP of one call of attention alone, as kernels are compared: no part of MFU, which discounts nothing.

    Forward 4 B H T^2 D: two products of 2 T^2 D for each head. Half of that where a mask hides half of the
    scores. Backward 2.5 times that: five products, of which one is computed again. Both: 3.5 times. Fewer
    queries than keys have fewer scores.
    """
    rows = case.queries or case.sequence_length
    scores = rows * (case.sequence_length - (rows / 2 if case.causal else 0))
    whole = 4 * case.batch * case.heads * scores * case.head_dim
    return whole * {"forward": 1.0, "backward": 2.5, "both": 3.5}[direction]


def prefill_flop_per_token(model: ModelConfig, prompt_length: int) -> int:
    """FLOP per token of a prompt that is read forward only: 2 N + 2 V D / T + 4 L H Q T.

    N is without the input embedding and the output head, whose V x D parameters multiply the last token of a
    prompt alone.
    """
    head = model.vocab_size * model.dim
    every_token = parameter_count(model) - 2 * head
    attention = 4 * model.layers * model.heads * model.head_dim * prompt_length
    return 2 * every_token + 2 * head // prompt_length + attention


_FORMULAS: dict[type[TaskSection], Callable[[RunConfig], int]] = {
    TrainConfig: lambda config: flop_per_token(config.model, config.train.sequence_length),
    InferenceConfig: lambda config: prefill_flop_per_token(config.model, config.inference.prompt_length),
}


def of_run(config: RunConfig) -> int | None:
    """FLOP per token of a step of the run, by its task's own formula; None for a task that has none."""
    formula = _FORMULAS.get(type(config.section))
    return formula and formula(config)


@dataclass(frozen=True)
class Peak:
    """A device's dense peak rate, in FLOP/s, and where the number comes from."""

    flops: float
    source: str


# Dense TFLOP/s by the precision of what is multiplied: of the tensor or matrix cores, but of NVIDIA's in
# float32 without TF32, which rounds to 11 bits. A card's usual name; a pattern of the names that drivers and
# people have for it, as `_plain` writes them; its peaks, and where they are printed. A pattern must match the
# whole name, and no slice of a device (`NVIDIA A100-SXM4-40GB MIG 1g.5gb`, `AMD Instinct MI300X, 38 of 304
# CUs`), whose peak a profile can state.
_PEAKS: tuple[tuple[str, str, dict[str, float], str], ...] = (
    (
        "B200",
        r"(nvidia )?b200( sxm)?( 1[89]\dgb)?",
        {"bfloat16": 2250, "float16": 2250, "float32": 75, "float8": 4500},
        "NVIDIA Blackwell datasheet, B200, dense",
    ),
    (
        "H200",
        r"(nvidia )?h200( sxm5?| 141gb)*",
        {"bfloat16": 989.4, "float16": 989.4, "float32": 67, "float8": 1978.9},
        "NVIDIA H200 datasheet, SXM, dense",
    ),
    (
        "GH200",
        r"(nvidia )?gh200( \d+gb?)*( hbm3e?)?",
        {"bfloat16": 989.4, "float16": 989.4, "float32": 67, "float8": 1978.9},
        "NVIDIA GH200 datasheet, dense",
    ),
    (
        "H100 SXM",
        r"(nvidia )?h100( 80gb hbm3| sxm5?( 80gb)?( hbm3)?| 80gb sxm5?)",
        {"bfloat16": 989.4, "float16": 989.4, "float32": 67, "float8": 1978.9},
        "NVIDIA H100 datasheet, SXM, dense",
    ),
    (
        "H100 PCIe",
        r"(nvidia )?h100( 80gb)? pcie( 80gb)?",
        {"bfloat16": 756, "float16": 756, "float32": 51, "float8": 1513},
        "NVIDIA H100 datasheet, PCIe, dense",
    ),
    (
        "H100 NVL",
        r"(nvidia )?h100 nvl( 94gb)?",
        {"bfloat16": 835, "float16": 835, "float32": 60, "float8": 1670.5},
        "NVIDIA H100 NVL datasheet, dense",
    ),
    (
        "A100",
        r"(nvidia )?a100( sxm4?| pcie| [48]0gb)*",
        {"bfloat16": 312, "float16": 312, "float32": 19.5},
        "NVIDIA A100 datasheet, dense",
    ),
    (
        "L40S",
        r"(nvidia )?l40s( 48gb)?",
        {"bfloat16": 362, "float16": 362, "float32": 91.6, "float8": 733},
        "NVIDIA L40S datasheet, dense",
    ),
    (
        "L4",
        r"(nvidia )?l4( 24gb)?",
        {"bfloat16": 121, "float16": 121, "float32": 30.3, "float8": 242.5},
        "NVIDIA L4 datasheet, dense",
    ),
    (
        "AMD Instinct MI250X",
        r"amd instinct mi250x",  # PyTorch sees each of its two halves as a GPU
        {"bfloat16": 191.5, "float16": 191.5, "float32": 47.85},
        "AMD Instinct MI250X data sheet, matrix, dense: half of the card's, as for one of its two dies (GCD)",
    ),
    (
        "MI300X",
        r"(amd )?(instinct )?mi300x( 192gb)?",
        {"bfloat16": 1307.4, "float16": 1307.4, "float32": 163.4, "float8": 2614.9},
        "AMD Instinct MI300X data sheet, matrix, dense",
    ),
    (
        "T4",
        r"((nvidia|tesla) )*t4( 1[56]gb)?",
        {"float16": 65.1, "float32": 8.1},
        "NVIDIA T4 datasheet; the T4 has no bf16",
    ),
)


def peak(device_name: str, dtype: str) -> Peak | None:
    """The device's dense peak at this precision, or None if it is unknown: it is never guessed."""
    tflops, source = _card(device_name)
    if dtype not in tflops:
        return None
    without = ", float32 without TF32" * (dtype == "float32" and source.startswith("NVIDIA"))
    return Peak(tflops[dtype] * 1e12, source + without)


def peaks(device_name: str, dtype: str) -> dict[str, Peak]:
    """The peak of each card that a name can mean, by the card's usual name; empty if it is of none.

    A name that several cards' names begin with means any of these: `H100` the SXM, the PCIe and the NVL.
    """
    if own := peak(device_name, dtype):
        return {device_name: own}
    return {card: kind for card in _kinds(device_name) if (kind := peak(card, dtype))}


def with_peaks(device_name: str) -> str:
    """Of what there are peaks: the precisions of this device, or the devices if it is none of them."""
    if tflops := _card(device_name)[0]:
        return f"(valid: {', '.join(tflops)})"
    return did_you_mean(device_name, [name for name, *_ in _PEAKS], "' or '".join(_kinds(device_name)))


def _kinds(device_name: str) -> list[str]:
    """The cards whose usual names begin with this one, if there are several: `H100`, or `NVIDIA H100`."""
    start = _plain(device_name).removeprefix("nvidia ") + " "
    kinds = [name for name, *_ in _PEAKS if _plain(name).startswith(start)]
    return kinds if len(kinds) > 1 else []


def _card(device_name: str) -> tuple[dict[str, float], str]:
    """A device's peaks in TFLOP/s by precision, and their source; none of a device that is not among them."""
    plain = _plain(device_name)
    return next((card[2:] for card in _PEAKS if re.fullmatch(card[1], plain)), ({}, ""))


def _plain(name: str) -> str:
    """A device's name in one way of writing: `NVIDIA A100-SXM4-80 GB` is `nvidia a100 sxm4 80gb`."""
    return re.sub(r"(\d) gb\b", r"\1gb", re.sub(r"[\s_-]+", " ", name.strip().lower()))
