"""The frontier: the largest sequence, batch or depth that can be trained in a device's memory."""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import replace
from typing import ClassVar, Literal, Self, TypeVar

from pydantic import Field, model_validator

from model.record.case import Case
from model.record.sections import Mismatch, Positive, SharedConfig, TaskSection, must_divide
from model.record.tasks.training import Dtype, TrainConfig

PROBE_STEPS = 3  # the optimizer's state appears in the first: the second is the first to have it all along
_TILE = 64  # tokens of the smallest block of most kernels
Quantity = Literal["sequence_length", "batch_size", "layers"]
Run = TypeVar("Run", bound=SharedConfig)


class FrontierConfig(TaskSection):
    """What is increased until memory runs out, and how a step is trained meanwhile."""

    key: ClassVar[str] = "frontier"
    purpose: ClassVar[str] = "The largest setting that fits into memory, for task frontier."
    reads: ClassVar[tuple[str, ...]] = ("model",)
    length_key: ClassVar[str] = "frontier.sequence_length"
    has_rate: ClassVar[bool] = False

    find: Quantity = Field(
        "sequence_length",
        description="What is increased, up to its own setting (of layers, `model.layers`).",
    )
    multiple: Positive = Field(1, description="Values tried are multiples of this.")
    resolution: float = Field(
        0.03,
        gt=0,
        lt=1,
        description="The search ends when the next value that does not fit is within this share, which is "
        "rounded up to a multiple.",
    )
    steps: Positive = Field(
        12,
        description="Probes of the search at most, each of three steps in a process of its own. Up to two "
        "are added above what does not fit.",
    )
    probe_seconds: Positive = Field(300, description="Seconds after which a probe is ended.")
    memory_fraction: float = Field(
        1.0,
        gt=0,
        le=1,
        description="Share of the GPU's memory (on a CPU, of the run's limit) for a probe; below 1, it "
        "emulates a smaller card.",
    )
    sequence_length: Positive = Field(4096, description="Tokens per sample.")
    batch_size: Positive = Field(1, description="Samples per step.")
    accumulate: Positive = Field(1, description="Parts of a batch that go through the model in turn.")
    dtype: Dtype = Field("bfloat16", description="Precision of parameters, gradients and optimizer states.")
    compile: bool = Field(False, description="Pass each block of the model through torch.compile.")
    loss: Literal["cross_entropy", "linear_cross_entropy"] = Field(
        "cross_entropy", description="As `train.loss`."
    )
    optimizer: Literal["adamw", "adamw_one_pass"] = Field("adamw", description="As `train.optimizer`.")
    checkpoint_activations: bool = Field(
        False, description="Keep only a block's input, and recompute the block in the backward pass."
    )

    @model_validator(mode="after")
    def _parts_are_equal(self) -> Self:
        what = "multiple" if self.find == "batch_size" else "batch_size"
        must_divide(what, getattr(self, what), {"accumulate": self.accumulate})
        return self

    def most(self, run: SharedConfig) -> int:
        """The largest value to try."""
        asked: int = run.model.layers if self.find == "layers" else getattr(self, self.find)
        return asked // self.multiple * self.multiple

    def check(self, run: SharedConfig) -> None:
        """Check that there is a value to try. Raises Mismatch."""
        if not self.most(run):
            setting = "model.layers" if self.find == "layers" else f"frontier.{self.find}"
            text = f"{setting}, the largest value to try, is below frontier.multiple {self.multiple}"
            raise Mismatch(text, setting, "frontier.multiple")

    def rehearsed(self) -> Self:
        """The same, with two probes."""
        return self.model_copy(update={"steps": 2})

    def training(self, run: Run, value: int) -> Run:
        """The training run whose steps a probe takes, with this value of what is sought."""
        shared = type(self).model_fields.keys() & TrainConfig.model_fields.keys() - {"steps"}
        settings = {name: getattr(self, name) for name in shared}
        model = run.model
        if self.find == "layers":
            model = model.model_copy(update={"layers": value})
        else:
            settings[self.find] = value
        train = TrainConfig(steps=PROBE_STEPS, warmup_steps=0, log_every=1, **settings)
        return run.model_copy(update={"task": "training", "train": train, "model": model})

    def unsupported(self, run: SharedConfig) -> dict[str, str]:
        """Why the run cannot start, by setting: one probe bounds nothing; else as the training would not."""
        if self.steps == 1:
            why = "frontier.steps=1 is one probe, and what fits ends between two: use 2 or more"
            return {
                "frontier.steps": f"{why}, such as --set frontier.steps=12; each trains {PROBE_STEPS} steps"
            }
        probed = self.training(run, self.multiple)
        train: TrainConfig = vars(probed)["train"]
        return {
            self.in_own_words(setting): self.in_own_words(reason)
            for setting, reason in train.unsupported(probed).items()
        }

    def lacking(self) -> dict[str, str]:
        """Which settings need another torch or triton than is installed here, each with the reason."""
        needs = TrainConfig(loss=self.loss, optimizer=self.optimizer).lacking()
        return {self.in_own_words(setting): self.in_own_words(reason) for setting, reason in needs.items()}

    def doubts(self, given: Container[str]) -> Iterator[tuple[tuple[str, ...], str]]:
        """Lengths that no kernel is made for."""
        if self.find == "sequence_length" and self.multiple % _TILE:
            text = f"lengths are tried that are no multiple of {_TILE}, for which kernels do more work"
            place = ("frontier.multiple",) if "frontier.multiple" in given else ()
            yield place, f"{text}: set frontier.multiple"

    def case(self, run: SharedConfig) -> Case:
        """The call of the smallest value; the others differ from it in batch and length alone."""
        batch = (self.multiple if self.find == "batch_size" else self.batch_size) // self.accumulate
        length = self.multiple if self.find == "sequence_length" else self.sequence_length
        smallest = replace(super().case(run), batch=batch, sequence_length=length)
        return replace(smallest, compile=self.compile)


section = FrontierConfig
