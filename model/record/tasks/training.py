"""Training: a llama on a text, in one or several processes."""

from __future__ import annotations

from collections.abc import Container, Iterator
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, WithJsonSchema, model_validator

from model.record import versions
from model.record.case import Case
from model.record.sections import (
    Dropout,
    ParallelConfig,
    Positive,
    SharedConfig,
    TaskSection,
    halved,
    must_divide,
)
from model.record.units import counted

# Backends are verified in float16 too; no study can ask for training in it.
Dtype = Annotated[
    Literal["bfloat16", "float16", "float32"],
    WithJsonSchema({"enum": ["bfloat16", "float32"], "type": "string"}),
]

NO_FLOAT16 = (
    "training in float16 is not supported: without loss scaling the loss becomes NaN within a few steps; "
    "use --set train.dtype=bfloat16, or on a GPU without bfloat16 (T4, V100) --set train.dtype=float32 "
    "--set attention=efficient"
)
NO_SPLIT_FLOAT8 = (
    "train.float8 has not been tried with parallel.tensor on a GPU: use --set parallel.tensor=1 and a "
    "larger parallel.shard, or --set train.float8=none"
)
_ON_A_CPU = {"loss": "cross_entropy", "optimizer": "adamw", "float8": "none"}  # all that a CPU can run


class TrainConfig(TaskSection):
    """How long, how large and how precise."""

    key: ClassVar[str] = "train"
    purpose: ClassVar[str] = "The training loop."
    reads: ClassVar[tuple[str, ...]] = ("model", "data", "parallel")
    length_key: ClassVar[str] = "train.sequence_length"
    trains: ClassVar[bool] = True
    measures: ClassVar[tuple[str, ...]] = (
        *("tokens_per_second", "mfu", "tflops", "training_tokens_percentage"),
        *("final_loss", "training_seconds", "peak_memory_bytes"),
        *("time_saved_percentage", "memory_saved_percentage"),
    )
    later: ClassVar[tuple[str, ...]] = (
        *("loss", "optimizer", "float8", "checkpoint_activations", "accumulate"),
    )
    omitted: ClassVar[tuple[str, ...]] = ("reduce", "attention_dropout")

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
    attention_dropout: Dropout = Field(
        0.0, description="Probability with which an attention weight becomes 0: a multiple of 1/16."
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

    def cut_by(self, parallel: ParallelConfig) -> bool:
        """Whether FSDP2 holds the parameters.

        DDP takes none that are split by heads, and adds up only in their precision.
        """
        beyond = parallel.tensor > 1 or self.reduce not in ("dtype", self.dtype)
        return parallel.pieces > 1 or (parallel.replicate > 1 and beyond)

    def check(self, run: SharedConfig) -> None:
        """Check that the processes have equal shares. Raises Mismatch."""
        parallel = run.parallel
        if parallel.samples > 1:
            names = ("parallel.replicate", "parallel.shard", "train.accumulate")
            by = dict(zip(names, (parallel.replicate, parallel.shard, self.accumulate), strict=True))
            must_divide("train.batch_size", self.batch_size, by)
        if parallel.context > 1:  # each process has a part of the first half, and its mirror image
            by = {"parallel.context": parallel.context}
            must_divide("train.sequence_length", self.sequence_length, by, times=2)
        for name in ("heads", "kv_heads", "ffn_dim"):
            must_divide(f"model.{name}", getattr(run.model, name), {"parallel.tensor": parallel.tensor})

    def processes(self, run: SharedConfig) -> int:
        """The number of the run's processes, one a GPU."""
        return run.parallel.processes

    def unsupported(self, run: SharedConfig) -> dict[str, str]:
        """Why the run cannot start, by setting, each with what to set instead; empty if it can."""
        reasons = {"train.dtype": NO_FLOAT16} if self.dtype == "float16" else {}
        if self.float8 != "none" and (reason := self._no_float8(run)):
            reasons["train.float8"] = reason
        for key, can in _ON_A_CPU.items() if run.device == "cpu" else ():
            if (asked := getattr(self, key)) != can:
                reasons[f"train.{key}"] = f"train.{key}={asked} needs a GPU; use --set train.{key}={can}"
        if self.float8 != "none" and run.parallel.tensor > 1 and not reasons:
            reasons["parallel.tensor"] = NO_SPLIT_FLOAT8
        return reasons

    def doubts(self, given: Container[str]) -> Iterator[tuple[tuple[str, ...], str]]:
        """A warm-up that never ends: the learning rate reaches its value at step warmup_steps + 1."""
        if self.warmup_steps >= self.steps:
            default = "" if "train.warmup_steps" in given else " (the default)"
            yield (
                ("train.warmup_steps", "train.steps"),
                f"the warm-up of {counted(self.warmup_steps, 'step')}{default} does not end within "
                f"{counted(self.steps, 'step')}, so the learning rate never reaches its value: "
                f"set train.warmup_steps below {self.steps}",
            )

    def savings(self, run: SharedConfig) -> Iterator[dict[str, Any]]:
        """Settings that need less memory; what changes the study least comes first."""
        joined, recomputed = {"loss": "linear_cross_entropy"}, {"checkpoint_activations": True}
        cuda = run.device == "cuda"
        yield from (joined, recomputed, joined | recomputed) if cuda else (recomputed,)
        batch = self.batch_size // run.parallel.samples
        yield from ({"accumulate": count} for count in range(2, batch + 1) if batch % count == 0)
        yield from ({"sequence_length": shorter} for shorter in halved(self.sequence_length))

    def lacking(self) -> dict[str, str]:
        """Which settings need another torch or triton than is installed here, each with the reason."""
        asked = {f"train.{key}": f"train.{key}={getattr(self, key)}" for key in ("optimizer", "loss")}
        if self.float8 != "none":
            asked["train.float8"] = "train.float8"
        return {
            setting: f"{feature} {reason}"
            for setting, feature in asked.items()
            if feature in versions.NEEDS
            for reason in versions.lacking(feature)
        }

    def _no_float8(self, run: SharedConfig) -> str:
        """Why its kernels do not take the run, if so: they take bfloat16 and multiples of 16."""
        if self.dtype != "bfloat16":
            use = "use --set train.dtype=bfloat16, or --set train.float8=none"
            return f"train.float8={self.float8} needs bfloat16; {use}"
        tokens = self.part_size * self.sequence_length
        apart = run.parallel.samples * run.parallel.context
        shares = f" / {apart} processes" if apart > 1 else ""
        sizes = {
            "model.dim": run.model.dim,
            "model.ffn_dim": run.model.ffn_dim,
            "the width of the keys (model.kv_heads x the head dim)": run.model.kv_heads * run.model.head_dim,
            "train.batch_size / train.accumulate x train.sequence_length" + shares: tokens // apart,
        }
        odd = [f"{name} ({size})" for name, size in sizes.items() if size % 16]
        needs = f"train.float8={self.float8} needs multiples of 16, but"
        return f"{needs} {', '.join(odd)} {'is' if len(odd) == 1 else 'are'} not" if odd else ""

    def case(self, run: SharedConfig) -> Case:
        """What the run asks of its attention backend in each of its processes."""
        parallel, model = run.parallel, run.model
        return Case(
            device=run.device,
            dtype=self.dtype,
            batch=self.part_size // parallel.samples,
            sequence_length=self.sequence_length,
            heads=model.heads // parallel.tensor,
            kv_heads=model.kv_heads // parallel.tensor,
            head_dim=model.head_dim,
            # Keys of other processes come from outside of a graph.
            compile=self.compile and parallel.context == 1,
            context=parallel.context,
            dropout=self.attention_dropout,
        )


section = TrainConfig
