"""What one run is: its validated, frozen configuration, as `run.json` has it. Importing it loads no torch."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator
from pydantic.json_schema import SkipJsonSchema

from model.record import versions
from model.record.case import Case
from model.record.sections import (
    AXES,
    CallConfig,
    DataConfig,
    Dtype,
    Frozen,
    InferenceConfig,
    Mismatch,
    ModelConfig,
    ParallelConfig,
    Positive,
    Seed,
    Strict,
    TrainConfig,
    must_divide,
)

__all__ = [
    "AXES",
    "NO_DATA",
    "SECTIONS",
    "UNREAD",
    "CallConfig",
    "DataConfig",
    "Dtype",
    "Frozen",
    "InferenceConfig",
    "Mismatch",
    "ModelConfig",
    "ParallelConfig",
    "Positive",
    "RunConfig",
    "Seed",
    "Strict",
    "Task",
    "TrainConfig",
]

Task = Literal["training", "attention", "inference"]
# The sections of the configuration that a task reads. The first is its own: how much it does, how precisely.
SECTIONS: dict[Task, tuple[str, ...]] = {
    "training": ("train", "model", "data", "parallel"),
    "attention": ("call",),
    "inference": ("inference", "model", "data"),
}
# The keys outside of sections that a task does not read, with what it reads instead.
UNREAD: dict[Task, dict[str, str]] = {
    "training": {},
    "attention": {"attention": "call.backends"},
    "inference": {},
}
NO_DATA = "`base` lacks data.path, the Parquet file to read, such as `data: {path: text.parquet}`"

NO_FLOAT16 = (
    "training in float16 is not supported: without loss scaling the loss becomes NaN within a few steps; "
    "use --set train.dtype=bfloat16, or on a GPU without bfloat16 (T4, V100) --set train.dtype=float32 "
    "--set attention=efficient"
)
NO_PADDING = (
    "data.mode=pad ends short prompts with padding, and decoding would continue from it: "
    "use --set data.mode=pack"
)
NO_SPLIT_FLOAT8 = (
    "train.float8 has not been tried with parallel.tensor on a GPU: use --set parallel.tensor=1 and a "
    "larger parallel.shard, or --set train.float8=none"
)
_OF_SHAPE = ("train.sequence_length", "train.batch_size", "model.")  # what attention alone has in call.shape
_ON_A_CPU = {"loss": "cross_entropy", "optimizer": "adamw", "float8": "none"}  # all that a CPU can run
Section = TrainConfig | InferenceConfig | CallConfig


class RunConfig(Strict):
    """One run, seed included, fully resolved. Its hash is the run's id."""

    attention: str = Field(
        "auto", description="Attention backend: a file in model/attention, or an entry point."
    )
    seed: Seed = Field(0, description="Seeds the weights and the order of the documents.")
    device: Literal["cuda", "cpu"] = Field(
        "cuda", description="Where the run computes; never chosen automatically."
    )
    task: Task = Field("training", description="What the run does; each task has a section of its own.")
    model: ModelConfig = Field(default_factory=ModelConfig, description="The llama's shape.")
    data: DataConfig | SkipJsonSchema[None] = Field(
        default=None, description="The text, for tasks that read any."
    )
    train: TrainConfig = Field(default_factory=TrainConfig, description="The training loop.")
    parallel: ParallelConfig = Field(
        default_factory=ParallelConfig, description="The processes that train the run together."
    )
    call: CallConfig = Field(default_factory=CallConfig, description="Attention alone, for task attention.")
    inference: InferenceConfig = Field(
        default_factory=InferenceConfig, description="Prefills, and tokens decoded with a cache."
    )

    @model_validator(mode="after")
    def _has_text(self) -> Self:
        if self.data is None and "data" in SECTIONS[self.task]:
            raise ValueError(NO_DATA)
        return self

    @model_validator(mode="after")
    def _is_shared_evenly(self) -> Self:
        """Among its processes."""
        train, parallel = self.train, self.parallel
        if self.task != "training":
            return self
        if parallel.samples > 1:
            names = ("parallel.replicate", "parallel.shard", "train.accumulate")
            by = dict(zip(names, (parallel.replicate, parallel.shard, train.accumulate), strict=True))
            must_divide("train.batch_size", train.batch_size, by)
        if parallel.context > 1:  # each process has a part of the first half, and its mirror image
            by = {"parallel.context": parallel.context}
            must_divide("train.sequence_length", train.sequence_length, by, times=2)
        for name in ("heads", "kv_heads", "ffn_dim"):
            must_divide(f"model.{name}", getattr(self.model, name), {"parallel.tensor": parallel.tensor})
        return self

    @model_serializer(mode="wrap")
    def _read_by_its_task(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out what the task does not read, and some of what is at its default: ids hash the rest."""
        every = {name for names in SECTIONS.values() for name in names}
        left_out = every.difference(SECTIONS[self.task]) | {*UNREAD[self.task]}
        left_out |= {"task"} if self.task == "training" else set()
        left_out |= {"parallel"} if self.parallel == ParallelConfig() else set()
        kept = {name: value for name, value in dump(self).items() if name not in left_out}
        if kept.get("train", {}).get("reduce") == TrainConfig.model_fields["reduce"].default:
            del kept["train"]["reduce"]
        return kept

    @property
    def processes(self) -> int:
        """How many processes train the run, one a GPU; the other tasks run in one process."""
        return self.parallel.processes if self.task == "training" else 1

    @property
    def section(self) -> Section:
        """The section of its own task."""
        section: Section = getattr(self, SECTIONS[self.task][0])
        return section

    @property
    def backends(self) -> dict[str, str]:
        """The attention backends that it names, each with the setting that does."""
        if self.task == "attention":
            return dict.fromkeys(self.call.names, "call.backends")
        return {self.attention: "attention"}

    @property
    def length_key(self) -> str:
        """The setting that says how many tokens a sample has."""
        return {"training": "train.sequence_length", "inference": "inference.prompt_length"}[self.task]

    @property
    def text(self) -> DataConfig:
        """The text of a task that reads one."""
        assert self.data
        return self.data

    def identity(self) -> dict[str, Any]:
        """What the run's id is a hash of.

        More keys are left out at their defaults, so that the runs of published studies keep their ids.
        """
        settings = self.model_dump()
        for key in ("loss", "optimizer", "float8", "checkpoint_activations", "accumulate"):
            if "train" in settings and settings["train"][key] == TrainConfig.model_fields[key].default:
                del settings["train"][key]
        if "call" in settings:
            settings["call"]["shape"] = self.call.canonical_shape
        return settings

    def in_own_words(self, reason: str) -> str:
        """A backend's reason, which names settings of training, with those of the run's task instead."""
        if self.task == "attention":
            return "; ".join(map(_of_a_call, reason.split("; ")))
        if self.task == "training":
            return reason
        return reason.replace("train.sequence_length", self.length_key).replace("train.", "inference.")

    def unsupported(self) -> dict[str, str]:
        """Why this run cannot start, by setting, each with what to set instead; empty if it can."""
        if self.task == "inference":
            return {"data.mode": NO_PADDING} if self.text.mode == "pad" else {}
        reasons = {f"train.{key}": why for key, why in self._cannot_train().items()}
        if self.train.float8 != "none" and self.parallel.tensor > 1 and not reasons:
            reasons["parallel.tensor"] = NO_SPLIT_FLOAT8
        return reasons

    def lacking(self) -> dict[str, str]:
        """Which settings need another torch or triton than is installed here, each with the reason."""
        if self.task != "training":
            return {}
        asked = {f"train.{key}": f"train.{key}={getattr(self.train, key)}" for key in ("optimizer", "loss")}
        if self.train.float8 != "none":
            asked["train.float8"] = "train.float8"
        return {
            setting: f"{feature} {reason}"
            for setting, feature in asked.items()
            if feature in versions.NEEDS
            for reason in versions.lacking(feature)
        }

    def _cannot_train(self) -> dict[str, str]:
        reasons = {"dtype": NO_FLOAT16} if self.train.dtype == "float16" else {}
        if self.train.float8 != "none":
            reasons |= self._no_float8()
        for key, can in _ON_A_CPU.items() if self.device == "cpu" else ():
            if (asked := getattr(self.train, key)) != can:
                use = f"use --set train.{key}={can}"
                reasons[key] = f"train.{key}={asked} needs a GPU; {use}"
        return reasons

    def _no_float8(self) -> dict[str, str]:
        """The kernels take bfloat16 and multiples of 16."""
        if self.train.dtype != "bfloat16":
            use = "use --set train.dtype=bfloat16, or --set train.float8=none"
            return {"float8": f"train.float8={self.train.float8} needs bfloat16; {use}"}
        tokens = self.train.part_size * self.train.sequence_length
        apart = self.parallel.samples * self.parallel.context
        shares = f" / {apart} processes" if apart > 1 else ""
        sizes = {
            "model.dim": self.model.dim,
            "model.ffn_dim": self.model.ffn_dim,
            "the width of the keys (model.kv_heads x the head dim)": self.model.kv_heads
            * self.model.head_dim,
            "train.batch_size / train.accumulate x train.sequence_length" + shares: tokens // apart,
        }
        odd = [f"{name} ({size})" for name, size in sizes.items() if size % 16]
        needs = f"train.float8={self.train.float8} needs multiples of 16, but"
        return {"float8": f"{needs} {', '.join(odd)} {'is' if len(odd) == 1 else 'are'} not"} if odd else {}

    @property
    def attention_case(self) -> Case:
        """What this run asks of its attention backend in each of its processes."""
        section, parallel = self.section, self.parallel
        if isinstance(section, CallConfig):
            return self._call_case
        return Case(
            device=self.device,
            dtype=section.dtype,
            batch=section.part_size // parallel.samples,
            sequence_length=section.sequence_length,
            heads=self.model.heads // parallel.tensor,
            kv_heads=self.model.kv_heads // parallel.tensor,
            head_dim=self.model.head_dim,
            # Keys of other processes come from outside of a graph.
            compile=section.compile and parallel.context == 1,
            context=parallel.context,
            new_tokens=self.inference.new_tokens if self.task == "inference" else 0,
        )

    @property
    def _call_case(self) -> Case:
        call, sizes = self.call, self.call.sizes
        return Case(
            device=self.device,
            dtype=call.dtype,
            batch=sizes["B"],
            sequence_length=sizes["T"],
            heads=sizes["H"],
            kv_heads=sizes["K"],
            head_dim=sizes["D"],
            causal=call.causal,
        )


def _of_a_call(reason: str) -> str:
    """One reason of a backend's, with the settings of attention alone."""
    told, _, remedy = reason.rpartition(": ")
    if told and any(word in remedy for word in _OF_SHAPE):
        return f"{told}: change call.shape"
    return reason.replace("train.dtype", "call.dtype").replace("set attention=", "set call.backends=")
