"""The sections of a run's configuration. Every field has a description: editors show them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import prod
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    WithJsonSchema,
    model_serializer,
    model_validator,
)

from model.record import backends
from model.record.errors import multiples

Positive = Annotated[int, Field(gt=0, lt=2**31)]
Seed = Annotated[int, Field(ge=0, lt=2**32)]

# Backends are verified in float16 too; no study can ask for training in it.
Dtype = Annotated[
    Literal["bfloat16", "float16", "float32"],
    WithJsonSchema({"enum": ["bfloat16", "float32"], "type": "string"}),
]


class Frozen(BaseModel):
    """A record that refuses unknown keys, NaN and infinity, and change."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, defer_build=True)


class Strict(Frozen):
    """A record that takes no value of another type for the right one: neither `true` for 1 nor "4" for 4."""

    model_config = ConfigDict(strict=True)


class Mismatch(ValueError):
    """Values that do not go together.

    Attributes:
        settings: whose values they are, by their dotted paths in the section that was validated.
    """

    def __init__(self, text: str, *settings: str) -> None:
        super().__init__(text)
        self.settings = settings


def must_divide(name: str, value: int, by: dict[str, int], times: int = 1) -> None:
    """Raise Mismatch unless a setting's value is a multiple of the product of others, and of `times`."""
    if value % (times * prod(by.values())):
        guilty = {setting: number for setting, number in by.items() if number > 1}
        factors = [str(times)] * (times > 1) + [f"{setting} {number}" for setting, number in guilty.items()]
        text = f"{name} {value} is not a multiple of {' x '.join(factors)}"
        raise Mismatch(f"{text}: {multiples(name, value, guilty, times)}", name, *guilty)


class ModelConfig(Strict):
    """A llama: RMSNorm, rotary positions, grouped heads, SwiGLU, untied output head."""

    dim: Positive = Field(4096, description="Width of the residual stream.")
    layers: Positive = Field(32, description="Number of transformer blocks.")
    heads: Positive = Field(32, description="Query heads; the head dim is dim / heads.")
    kv_heads: Positive = Field(8, description="Key and value heads, each shared by heads / kv_heads queries.")
    ffn_dim: Positive = Field(14336, description="Inner width of the SwiGLU feed-forward.")
    vocab_size: Positive = Field(131072, description="Number of token ids, at least the tokenizer's.")
    rope_theta: float = Field(500000.0, gt=0, description="Base of the rotary frequencies.")
    norm_eps: float = Field(1e-5, gt=0, description="Epsilon of RMSNorm.")

    @property
    def head_dim(self) -> int:
        """Width of one head."""
        return self.dim // self.heads

    @model_validator(mode="after")
    def _heads_divide(self) -> Self:
        must_divide("dim", self.dim, {"heads": self.heads})
        if self.head_dim % 2:
            text = f"head dim {self.head_dim} (dim / heads) is odd: rotary positions need pairs"
            raise Mismatch(text, "dim", "heads")
        must_divide("heads", self.heads, {"kv_heads": self.kv_heads})
        return self


class DataConfig(Strict):
    """Where the text comes from and how documents become samples."""

    path: str = Field(
        min_length=1, description="Parquet file with a text column, relative to the study's file."
    )
    text_column: str = Field("text", min_length=1, description="The column that holds the documents.")
    tokenizer: str = Field(
        "bytes",
        min_length=1,
        description="`bytes`, or a Hugging Face tokenizer: a tokenizer.json, its folder, or a hub name.",
    )
    mode: Literal["pad", "pack"] = Field(
        "pack", description="`pad`: one document per sample, truncated or padded. `pack`: documents joined."
    )


class TrainConfig(Strict):
    """How long, how large and how precise."""

    steps: Positive = Field(1000, description="Optimizer steps.")
    sequence_length: Positive = Field(4096, description="Tokens per sample.")
    batch_size: Positive = Field(1, description="Samples per step.")
    accumulate: Positive = Field(
        1, description="Parts of a batch that go through the model in turn; their gradients are added up."
    )
    learning_rate: float = Field(5e-5, gt=0, description="AdamW's learning rate, reached after the warm-up.")
    warmup_steps: int = Field(100, ge=0, lt=2**31, description="Linear warm-up; constant afterwards.")
    clip_norm: float = Field(1.0, gt=0, description="Largest gradient norm before clipping.")
    weight_decay: float = Field(0.01, ge=0, description="Decoupled weight decay of AdamW.")
    log_every: Positive = Field(5, description="Steps between step records; step 1 has one too.")
    dtype: Dtype = Field("bfloat16", description="Precision of parameters, gradients and optimizer states.")
    compile: bool = Field(False, description="Pass each block of the model through torch.compile.")
    loss: Literal["cross_entropy", "linear_cross_entropy"] = Field(
        "cross_entropy",
        description="`linear_cross_entropy` joins output head and loss: logits exist once, in `dtype`.",
    )
    optimizer: Literal["adamw", "adamw_one_pass"] = Field(
        "adamw", description="`adamw_one_pass` is AdamW by this project's kernels, at the speed of memory."
    )

    float8: Literal["none", "tensorwise", "rowwise"] = Field(
        "none",
        description="Scaling of the blocks' 8-bit matrix products, by torchao; parameters stay in `dtype`.",
    )
    checkpoint_activations: bool = Field(
        False, description="Keep only a block's input, and recompute the block in the backward pass."
    )
    reduce: Literal["dtype", "float32"] = Field(
        "dtype", description="Precision in which gradients are summed across processes."
    )

    @model_validator(mode="after")
    def _parts_are_equal(self) -> Self:
        must_divide("batch_size", self.batch_size, {"accumulate": self.accumulate})
        return self

    def rehearsed(self) -> Self:
        """The same, over after two steps: the second is the first to use the optimizer's state."""
        return self.model_copy(update={"steps": 2, "log_every": 1})

    @property
    def part_size(self) -> int:
        """Samples that go through the model at once."""
        return self.batch_size // self.accumulate

    @property
    def precision(self) -> str:
        """Precision of most products, on which the peak rate depends."""
        return self.dtype if self.float8 == "none" else "float8"

    @property
    def tokens(self) -> int:
        """Tokens of all steps, padding included."""
        return self.steps * self.batch_size * self.sequence_length


AXES = ("replicate", "shard", "context", "tensor")  # processes along the last are neighbours


class ParallelConfig(Strict):
    """How many processes train a run together, and what each has of it; the product of `AXES`.

    `train.batch_size` is the batch of all of them, so that its loss is the same on any number.
    """

    replicate: Positive = Field(
        1, description="Copies of the model (or of its shards), each with samples of its own (DDP, HSDP)."
    )
    shard: Positive = Field(
        1, description="Processes that share one copy's parameters, each with samples of its own (FSDP2)."
    )
    context: Positive = Field(1, description="Processes that share each sample's tokens (context parallel).")
    tensor: Positive = Field(1, description="Processes that share each block's heads and feed-forward.")
    reshard: bool = Field(
        True,
        description="Free a block's gathered parameters after its forward pass, and gather them again "
        "for the backward pass (FSDP2); `false`: gather them once per step.",
    )

    @model_validator(mode="after")
    def _gathers_what_is_sharded(self) -> Self:
        if not self.reshard and self.pieces == 1:
            text = (
                "reshard false keeps gathered parameters, but shard 1 gathers none: leave reshard out there"
            )
            raise Mismatch(text, "reshard", "shard")
        return self

    @model_serializer(mode="wrap")
    def _without_defaults(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out `reshard` at its default, so that the runs of published studies keep their ids."""
        return {name: value for name, value in dump(self).items() if name != "reshard" or not value}

    def on(self, numbers: Mapping[str, int]) -> Self:
        """The same, with other numbers of processes along some axes."""
        config = self.model_copy(update=dict(numbers))
        return config.model_copy(update={"reshard": self.reshard or config.pieces == 1})

    @property
    def pieces(self) -> int:
        """Into how many FSDP2 cuts each parameter."""
        return self.shard * self.context

    @property
    def processes(self) -> int:
        """The number of the run's processes, one a GPU."""
        return self.replicate * self.shard * self.context * self.tensor

    def cuts(self, train: TrainConfig) -> bool:
        """Whether FSDP2 holds the parameters.

        DDP takes none that are split by heads, and adds up only in their precision.
        """
        beyond = self.tensor > 1 or train.reduce not in ("dtype", train.dtype)
        return self.pieces > 1 or (self.replicate > 1 and beyond)

    @property
    def samples(self) -> int:
        """Processes, or groups of them, that train on different samples."""
        return self.replicate * self.shard


class CallConfig(Strict):
    """One call of attention alone, which several backends make in turn."""

    shape: str = Field(
        "B1 T4096 H32 K8 D128",
        description="Batch, tokens, query heads, key heads (default: as many) and head dim.",
    )
    causal: bool = Field(True, description="Whether a causal mask applies.")
    dtype: Literal["bfloat16", "float16", "float32"] = Field("bfloat16", description="Precision of Q, K, V.")
    backends: str = Field("all", description="Attention backends separated by spaces, or `all`.")
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
    def precision(self) -> str:
        """Precision of the products."""
        return self.dtype

    @property
    def names(self) -> tuple[str, ...]:
        """The backends."""
        return backends.names() if self.backends == "all" else tuple(dict.fromkeys(self.backends.split()))

    def rehearsed(self) -> Self:
        """The same, over after two rounds."""
        return self.model_copy(update={"steps": 2})


_NUMBER = r"[1-9]\d{0,8}"
_SHAPE = re.compile(
    rf"B(?P<B>{_NUMBER}) T(?P<T>{_NUMBER}) H(?P<H>{_NUMBER})( K(?P<K>{_NUMBER}))? D(?P<D>{_NUMBER})"
)


class InferenceConfig(Strict):
    """How many prefills of which prompts, and what is decoded after them."""

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
    compile: bool = Field(
        False, description="Pass each block of the model through torch.compile; decoding stays eager."
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

    @property
    def part_size(self) -> int:
        """Samples that go through the model at once."""
        return self.batch_size

    @property
    def precision(self) -> str:
        """Precision of most products, on which the peak rate depends."""
        return self.dtype

    def rehearsed(self) -> Self:
        """The same, with two prefills."""
        return self.model_copy(update={"steps": 2, "warmup_steps": 1})
