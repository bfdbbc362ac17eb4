"""Inference: prefills of prompts, and tokens decoded with a cache."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from model.record.case import FP8, Case
from model.record.sections import Mismatch, Positive, SharedConfig, TaskSection, halved

NO_PADDING = (
    "data.mode=pad ends short prompts with padding, and decoding would continue from it: "
    "use --set data.mode=pack"
)
NO_GRAPHS = "CUDA graphs need device: cuda: use --set inference.cuda_graphs=false"


class InferenceConfig(TaskSection):
    """How many prefills of which prompts, and what is decoded after them."""

    key: ClassVar[str] = "inference"
    purpose: ClassVar[str] = "Prefills, and tokens decoded with a cache."
    reads: ClassVar[tuple[str, ...]] = ("model", "data")
    length_key: ClassVar[str] = "inference.prompt_length"
    measures: ClassVar[tuple[str, ...]] = (
        *("tokens_per_second", "mfu", "tflops"),
        *("prefill_milliseconds", "decode_milliseconds", "peak_memory_bytes"),
        *("time_saved_percentage", "memory_saved_percentage"),
    )

    later: ClassVar[tuple[str, ...]] = ("attention_dtype", "cuda_graphs")

    steps: Positive = Field(
        60, description="Prefills, including the warm-up, each on a new batch of prompts."
    )
    warmup_steps: int = Field(
        10, ge=0, lt=2**31, description="Warm-up prefills at the start, which no rate counts."
    )
    batch_size: Positive = Field(1, description="Prompts per prefill.")
    prompt_length: Positive = Field(4096, description="Tokens per prompt.")
    new_tokens: int = Field(
        128, ge=0, lt=2**31, description="Tokens decoded after the last prompts, with a KV cache; 0: none."
    )
    dtype: Literal["bfloat16", "float16", "float32"] = Field(
        "bfloat16", description="Precision of weights and cache."
    )
    attention_dtype: Literal["dtype", "float8_e4m3fn"] = Field(
        "dtype",
        description="Precision of Q, K and V in prefills, which are rounded to it within each call; `dtype`: "
        "that of the cache, with which tokens are decoded in any case.",
    )
    compile: bool = Field(
        False, description="Pass each block of the model through torch.compile; decoding stays eager."
    )
    cuda_graphs: bool = Field(
        False,
        description="Decode with CUDA graphs, one for each number of keys, captured before it is timed, so "
        "that launches take no time. Needs device: cuda.",
    )

    @model_validator(mode="after")
    def _measures_something(self) -> Self:
        if self.warmup_steps >= self.steps:
            text = (
                f"inference.warmup_steps {self.warmup_steps} leaves none of the {self.steps} steps to "
                "measure: set it below inference.steps"
            )
            raise Mismatch(text, "warmup_steps", "steps")
        return self

    @model_validator(mode="after")
    def _rounds_what_it_can(self) -> Self:
        if self.in_8_bits and self.dtype != "bfloat16":
            text = f"attention_dtype {FP8} gives bfloat16, and dtype is {self.dtype}: set dtype: bfloat16"
            raise Mismatch(text, "attention_dtype", "dtype")
        if self.in_8_bits and self.compile:
            text = f"attention_dtype {FP8} is made for eager calls alone: set compile: false"
            raise Mismatch(text, "attention_dtype", "compile")
        return self

    @property
    def in_8_bits(self) -> bool:
        """Whether attention of prompts has numbers of 8 bits."""
        return self.attention_dtype == FP8

    @property
    def sequence_length(self) -> int:
        """Tokens of a sample."""
        return self.prompt_length

    @property
    def room(self) -> int:
        """Tokens of a sample that the cache holds in the end."""
        return self.prompt_length + self.new_tokens

    @property
    def median_keys(self) -> int:
        """Keys that a decoded token meets: the median, of two in the middle the fewer."""
        return self.prompt_length + (self.new_tokens + 1) // 2

    def rehearsed(self) -> Self:
        """The same, with two prefills."""
        return self.model_copy(update={"steps": 2, "warmup_steps": 1})

    def unsupported(self, run: SharedConfig) -> dict[str, str]:
        """Refuse prompts that end in padding, and CUDA graphs without CUDA."""
        padded = {"data.mode": NO_PADDING} if run.data and run.data.mode == "pad" else {}
        return padded | (
            {"inference.cuda_graphs": NO_GRAPHS} if self.cuda_graphs and run.device != "cuda" else {}
        )

    def savings(self, run: SharedConfig) -> Iterator[dict[str, Any]]:  # noqa: ARG002
        """Settings that need less memory; what changes the study least comes first."""
        yield from ({"batch_size": size} for size in halved(self.batch_size))
        yield from ({"prompt_length": length} for length in halved(self.prompt_length))

    def case(self, run: SharedConfig) -> Case:
        """What the run asks of its attention backend: a prefill, and a token at a time after it."""
        case = replace(super().case(run), compile=self.compile, new_tokens=self.new_tokens)
        return replace(case, dtype=FP8, decoding_dtype=self.dtype) if self.in_8_bits else case


section = InferenceConfig
