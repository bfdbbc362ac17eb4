"""Attention alone: one call, which several backends make in turn."""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Mapping
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from model.record import backends
from model.record.case import FP8, Case
from model.record.sections import Dropout, Mismatch, Positive, SharedConfig, TaskSection

_NUMBER = r"[1-9]\d{0,8}"
_SHAPE = re.compile(
    rf"B(?P<B>{_NUMBER}) T(?P<T>{_NUMBER}) H(?P<H>{_NUMBER})( K(?P<K>{_NUMBER}))? D(?P<D>{_NUMBER})"
)
_TILE = re.compile(rf"({_NUMBER})x({_NUMBER})")
_OF_SHAPE = ("train.sequence_length", "train.batch_size", "model.")  # what attention alone has in call.shape


class CallConfig(TaskSection):
    """One call of attention alone, which several backends make in turn."""

    key: ClassVar[str] = "call"
    purpose: ClassVar[str] = "Attention alone, for task attention."
    compares_backends: ClassVar[bool] = True
    has_rate: ClassVar[bool] = False
    unread: ClassVar[Mapping[str, str]] = {"attention": "call.backends"}
    measures: ClassVar[tuple[str, ...]] = (
        *("forward_milliseconds", "backward_milliseconds", "both_milliseconds"),
        *("forward_tflops", "backward_tflops", "both_tflops", "call_memory_bytes", "both_dram_bytes"),
    )
    later: ClassVar[tuple[str, ...]] = ("dropout",)
    omitted: ClassVar[tuple[str, ...]] = ("tile", "traffic")

    shape: str = Field(
        "B1 T4096 H32 K8 D128",
        description="Batch, tokens, query heads, key heads (default: as many) and head dim.",
    )
    causal: bool = Field(True, description="Whether a causal mask applies.")
    dtype: Literal["bfloat16", "float16", "float32", "float8_e4m3fn"] = Field(
        "bfloat16",
        description="Precision of Q, K, V. Of float8_e4m3fn (E4M3) the forward alone, with a scale for each "
        "key head.",
    )
    dropout: Dropout = Field(
        0.0, description="Probability with which a weight becomes 0: a multiple of 1/16."
    )
    backends: str = Field("all", description="Attention backends separated by spaces, or `all`.")
    tile: str = Field(
        "",
        description="Queries x keys of a tile, such as 128x64, of backends that take one; empty: their own.",
    )
    traffic: bool = Field(
        False,
        description="Whether NVIDIA's profiler, ncu, counts the bytes of a call after the timing.",
    )
    steps: Positive = Field(
        31, description="Rounds: in each, every backend is called once forward and once backward."
    )

    @property
    def sizes(self) -> dict[str, int]:
        """The numbers of the shape, by letter."""
        match = _SHAPE.fullmatch(self.shape)
        assert match
        numbers = {letter: int(number) for letter, number in match.groupdict().items() if number}
        return {"K": numbers["H"], **numbers}

    @model_validator(mode="after")
    def _is_a_shape(self) -> Self:
        if not _SHAPE.fullmatch(self.shape):
            like = "must look like B2 T4096 H32 K8 D128, in this order"
            raise Mismatch(
                f"shape '{self.shape}' {like}: whole numbers from 1, a space between them", "shape"
            )
        if self.sizes["H"] % self.sizes["K"]:
            text = f"shape '{self.shape}' has heads (H) that are not a multiple of its key heads (K)"
            raise Mismatch(text, "shape")
        if self.sizes["D"] % 2:  # a certificate has a small llama in it
            why = "rotary positions need pairs, and certificates try a small llama with it"
            raise Mismatch(f"shape '{self.shape}' has an odd head dim (D): {why}", "shape")
        return self

    @model_validator(mode="after")
    def _drops_no_weights_of_8_bits(self) -> Self:
        if self.dtype == FP8 and self.dropout:
            text = f"dropout does not go with dtype {FP8}, for which no backend has it: leave one of them out"
            raise Mismatch(text, "dropout")
        return self

    @property
    def precision(self) -> str:
        """The precision of the products, by which a peak is chosen."""
        return "float8" if self.dtype == FP8 else self.dtype

    @property
    def tile_sizes(self) -> tuple[int, int] | None:
        """Queries and keys of a tile; None where each backend has its own."""
        match = _TILE.fullmatch(self.tile)
        return (int(match[1]), int(match[2])) if match else None

    @model_validator(mode="after")
    def _is_a_tile(self) -> Self:
        if self.tile and not self.tile_sizes:
            text = f"tile '{self.tile}' must look like 128x64: whole numbers from 1, queries and then keys"
            raise Mismatch(text, "tile")
        return self

    @model_validator(mode="after")
    def _names_all_or_some(self) -> Self:
        if "all" in self.names and self.backends != "all":
            raise Mismatch(f"backends '{self.backends}' names `all`, which stands alone", "backends")
        return self

    @property
    def canonical_shape(self) -> str:
        """The shape in the one way to write it: without key heads where there are as many heads."""
        return self.shape.replace(f" K{self.sizes['H']} ", " ")

    @property
    def batch_size(self) -> int:
        """Samples of a call."""
        return self.sizes["B"]

    @property
    def sequence_length(self) -> int:
        """Tokens of a sample."""
        return self.sizes["T"]

    @property
    def names(self) -> tuple[str, ...]:
        """The backends."""
        return backends.names() if self.backends == "all" else tuple(dict.fromkeys(self.backends.split()))

    def identity(self, settings: dict[str, Any]) -> dict[str, Any]:
        """As of other tasks, with the shape as one writes it."""
        return super().identity(settings) | {"shape": self.canonical_shape}

    def backends_of(self, run: SharedConfig) -> dict[str, str]:  # noqa: ARG002
        """The attention backends that the run names, each with the setting that does."""
        return dict.fromkeys(self.names, "call.backends")

    def unsupported(self, run: SharedConfig) -> dict[str, str]:
        """Why no backend can make the call, by setting, each with what to set instead."""
        reasons = {}
        if self.dtype == FP8 and run.device == "cpu":
            others = "bfloat16, float16 or float32"
            reasons["call.dtype"] = f"call.dtype={FP8} needs a GPU: use --set device=cuda, or {others}"
        if self.dtype == FP8 and self.tile:
            reasons["call.tile"] = f"call.tile does not go with call.dtype {FP8}: leave one of them out"
        return reasons

    def doubts(self, given: Container[str]) -> Iterator[tuple[tuple[str, ...], str]]:
        """A shape that nobody chose."""
        if "call.shape" not in given:
            yield (), f"without call.shape, attention is timed at {self.shape}, an 8B llama's"

    def in_own_words(self, reason: str) -> str:
        """A backend's reason, which names settings of training, with those of `call` instead."""
        reasons = []
        for text in reason.split("; "):
            told, _, remedy = text.rpartition(": ")
            if told and any(word in remedy for word in _OF_SHAPE):
                reasons.append(f"{told}: change call.shape")
            else:
                renamed = text.replace("train.dtype", "call.dtype")
                renamed = renamed.replace("train.attention_dropout", "call.dropout")
                reasons.append(renamed.replace("set attention=", "set call.backends="))
        return "; ".join(reasons)

    def case(self, run: SharedConfig) -> Case:
        """The call."""
        sizes = self.sizes
        return Case(
            device=run.device,
            dtype=self.dtype,
            batch=sizes["B"],
            sequence_length=sizes["T"],
            heads=sizes["H"],
            kv_heads=sizes["K"],
            head_dim=sizes["D"],
            causal=self.causal,
            dropout=self.dropout,
            tile=self.tile_sizes,
        )


section = CallConfig
