"""What all tasks' configurations are made of: the sections that tasks share, and the base of their own.

Every field has a description: editors show them.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from math import isqrt, prod
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)
from pydantic.json_schema import SkipJsonSchema

from model.record.case import Case

Positive = Annotated[int, Field(gt=0, lt=2**31)]
Seed = Annotated[int, Field(ge=0, lt=2**32)]
Scalar = str | int | float | bool  # a value of a setting, and so of a factor
# Kernels round other probabilities, each in its own way: FlashAttention to 1/255, cuDNN to 1/16.
Dropout = Annotated[float, Field(ge=0, lt=1, multiple_of=1 / 16)]


class Frozen(BaseModel):
    """A record that refuses unknown keys, NaN and infinity, and change."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, defer_build=True)


class Strict(Frozen):
    """A record that takes no value of another type for the right one: neither `true` for 1 nor "4" for 4."""

    model_config = ConfigDict(strict=True)


class Section(Strict):
    """A section of a configuration.

    Attributes:
        omitted: settings that are written, and hashed into ids, only where they differ from their defaults:
            they came after studies were published, whose runs keep their records and ids.
    """

    omitted: ClassVar[tuple[str, ...]] = ()

    @model_serializer(mode="wrap")
    def _without_omitted(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return self._without_defaults(dump(self), self.omitted)

    @classmethod
    def _without_defaults(cls, settings: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
        """The settings without those of these names that are at their defaults."""
        defaults = {name: cls.model_fields[name].default for name in names}
        return {
            name: value for name, value in settings.items() if name not in defaults or value != defaults[name]
        }


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
        raise Mismatch(f"{text}: {nearest_multiples(name, value, guilty, times)}", name, *guilty)


def nearest_multiples(name: str, value: int, by: Mapping[str, int], times: int = 1) -> str:
    """Valid values for a setting that is not a multiple of the product of others, and of `times`.

    The nearest numbers on either side, for the others' product and for the setting itself.
    """
    product = prod(by.values())
    multiple = value - value % (times * product)
    most = 0 if value % times else value // times  # 0: times alone does not divide it
    divisors = {
        divisor for low in range(1, isqrt(most) + 1) if most % low == 0 for divisor in (low, most // low)
    }
    choices = {
        " x ".join(by): _nearest(product, divisors),
        name: _nearest(value, {multiple, multiple + times * product} - {0}),
    }
    return ", ".join(f"{numbers} would do for {of}" for of, numbers in choices.items() if numbers)


def _nearest(to: int, numbers: Iterable[int]) -> str:
    below = max((number for number in numbers if number < to), default=None)
    above = min((number for number in numbers if number > to), default=None)
    return " or ".join(str(number) for number in (below, above) if number is not None)


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


AXES = ("replicate", "shard", "context", "tensor")  # processes along the last are neighbours


class ParallelConfig(Section):
    """How many processes train a run together, and what each has of it; the product of `AXES`.

    `train.batch_size` is the batch of all of them, so that its loss is the same on any number.
    """

    omitted: ClassVar[tuple[str, ...]] = ("reshard",)

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

    @property
    def samples(self) -> int:
        """Processes, or groups of them, that train on different samples."""
        return self.replicate * self.shard


def halved(size: int) -> list[int]:
    """Half of a size, a quarter, and so on down to 1."""
    return [size >> times for times in range(1, size.bit_length())]


class SharedConfig(Strict):
    """What a run of any task has, beside the section of its own task."""

    attention: str = Field(
        "auto", description="Attention backend: a file in model/attention, or an entry point."
    )
    seed: Seed = Field(0, description="Seeds the weights and the order of the documents.")
    device: Literal["cuda", "cpu"] = Field(
        "cuda", description="Where the run computes; never chosen automatically."
    )
    task: str = Field("training", description="What the run does; each task has a section of its own.")
    model: ModelConfig = Field(default_factory=ModelConfig, description="The llama's shape.")
    data: DataConfig | SkipJsonSchema[None] = Field(
        default=None, description="The text, for tasks that read any."
    )
    parallel: ParallelConfig = Field(
        default_factory=ParallelConfig, description="The processes that train the run together."
    )


class TaskSection(Section):
    """The section that is a task's own: how much it does, how precisely, and what follows from that.

    Methods get the run's configuration, which has this section in it. Beside its fields, a section has
    `steps`, `dtype`, `batch_size` and `sequence_length`, as fields or properties.

    Attributes:
        key: the section's name in a configuration.
        purpose: its description there.
        reads: the shared sections that the task reads.
        unread: keys outside of sections that the task does not read, with what it reads instead.
        length_key: the setting that says how many tokens a sample has.
        trains: whether a step has a backward pass and an update.
        compares_backends: whether each run calls several backends in turn, and compares them itself.
        has_rate: whether its runs have one, by which a study compares its groups.
        measures: which of the quantities that others report its runs measure too.
        later: settings that are always written, but hashed into ids only where they differ from their
            defaults, for the same reason as `omitted`.
    """

    key: ClassVar[str]
    purpose: ClassVar[str]
    reads: ClassVar[tuple[str, ...]] = ()
    unread: ClassVar[Mapping[str, str]] = {}
    length_key: ClassVar[str] = ""
    trains: ClassVar[bool] = False
    compares_backends: ClassVar[bool] = False
    has_rate: ClassVar[bool] = True
    measures: ClassVar[tuple[str, ...]] = ()
    later: ClassVar[tuple[str, ...]] = ()

    if TYPE_CHECKING:

        @property
        def steps(self) -> int:
            """How often the run repeats what it measures."""

        @property
        def dtype(self) -> str:
            """Precision of the weights."""

        @property
        def batch_size(self) -> int:
            """Samples of a step."""

        @property
        def sequence_length(self) -> int:
            """Tokens of a sample."""

    @property
    def precision(self) -> str:
        """Precision of most products, on which the peak rate depends."""
        return self.dtype

    @property
    def part_size(self) -> int:
        """Samples that go through the model at once."""
        return self.batch_size

    def rehearsed(self) -> Self:
        """The same, over after two steps."""
        return self.model_copy(update={"steps": 2})

    def check(self, run: SharedConfig) -> None:
        """Hold the section against the rest of the run's configuration. Raises Mismatch."""

    def identity(self, settings: dict[str, Any]) -> dict[str, Any]:
        """What ids hash of the section: its settings, without those of `later` that are at their defaults."""
        return self._without_defaults(settings, self.later)

    def processes(self, run: SharedConfig) -> int:  # noqa: ARG002
        """The number of the run's processes, one a GPU."""
        return 1

    def backends_of(self, run: SharedConfig) -> dict[str, str]:
        """The attention backends that the run names, each with the setting that does."""
        return {run.attention: "attention"}

    def in_own_words(self, reason: str) -> str:
        """A backend's reason, which names settings of training, with the task's own instead."""
        return reason.replace("train.sequence_length", self.length_key).replace("train.", f"{self.key}.")

    def unsupported(self, run: SharedConfig) -> dict[str, str]:  # noqa: ARG002
        """Why the run cannot start, by setting, each with what to set instead; empty if it can."""
        return {}

    def doubts(self, given: Container[str]) -> Iterator[tuple[tuple[str, ...], str]]:  # noqa: ARG002
        """What the writer may not have meant: the settings, by their dotted names, and a sentence.

        Args:
            given: dotted names of the settings that the study gives.
        """
        return iter(())

    def savings(self, run: SharedConfig) -> Iterator[dict[str, Any]]:  # noqa: ARG002
        """Settings of the section that need less memory; what changes the study least comes first."""
        return iter(())

    def lacking(self) -> dict[str, str]:
        """Which settings need another torch or triton than is installed here, each with the reason."""
        return {}

    def case(self, run: SharedConfig) -> Case:
        """What the run asks of its attention backend in each of its processes."""
        return Case(
            device=run.device,
            dtype=self.dtype,
            batch=self.part_size,
            sequence_length=self.sequence_length,
            heads=run.model.heads,
            kv_heads=run.model.kv_heads,
            head_dim=run.model.head_dim,
        )
