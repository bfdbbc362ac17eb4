"""Numbers that other people report of what a study runs: what may be given, and what a record keeps."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from model.record.sections import Frozen, Strict

_PRINTED = r"-?\d+(\.\d*)?([eE][+-]?\d+)?"
ReadFrom = Literal["table", "plot", "text"]
Number = Annotated[float, Field(gt=0)]
Printed = Annotated[str, Field(pattern=f"^{_PRINTED}$")]


class ReportedNumbers(Strict):
    """Quantities of a group as others report them, in the units of the view `runs`."""

    tokens_per_second: Number | None = Field(None, description="Tokens per second, over all GPUs.")
    mfu: Number | None = Field(None, description="Model FLOP/s utilization, in percent.")
    tflops: Number | None = Field(None, description="Model TFLOP/s of each GPU.")
    training_tokens_percentage: Number | None = Field(None, description="Tokens that train, in percent.")
    final_loss: Number | None = Field(None, description="Loss at the end, in nats per token.")
    training_seconds: Number | None = Field(None, description="Time of all steps, in seconds.")
    prefill_milliseconds: Number | None = Field(None, description="Time to read a prompt, in ms.")
    decode_milliseconds: Number | None = Field(None, description="Time of a decoded token, in ms.")
    peak_memory_bytes: Number | None = Field(
        None, description="Peak memory in bytes: 65.3 GB are 65.3e9, and 65.3 GiB 70.1e9."
    )
    time_saved_percentage: float | None = Field(
        None, description="Percent of the baseline's time that is saved; negative where it takes longer."
    )
    memory_saved_percentage: float | None = Field(
        None, description="Percent of the baseline's peak memory that is saved; negative where it needs more."
    )
    forward_milliseconds: Number | None = Field(None, description="Time of a forward of attention alone.")
    backward_milliseconds: Number | None = Field(None, description="Time of its backward, in ms.")
    both_milliseconds: Number | None = Field(None, description="Time of the two together, in ms.")
    forward_tflops: Number | None = Field(None, description="Kernel TFLOP/s of a forward: 4 B H S^2 D FLOP.")
    backward_tflops: Number | None = Field(None, description="Kernel TFLOP/s of a backward: 2.5 times these.")
    both_tflops: Number | None = Field(None, description="Kernel TFLOP/s of both: 3.5 times these.")
    call_memory_bytes: Number | None = Field(
        None,
        description="Peak memory of both, beyond Q, K, V and the gradient of the output.",
    )
    both_dram_bytes: Number | None = Field(
        None, description="Bytes of the GPU's memory that both read and write: 40.3 GB are 40.3e9."
    )

    @property
    def given(self) -> dict[str, float]:
        """The quantities that are reported."""
        values = {name: getattr(self, name) for name in QUANTITIES}
        return {name: value for name, value in values.items() if value is not None}

    @model_validator(mode="after")
    def _reports_something(self) -> Self:
        if not self.given:
            raise ValueError(f"no number is reported; give one or more of {', '.join(QUANTITIES)}")
        return self


QUANTITIES = tuple(ReportedNumbers.model_fields)


class ReportedOrigin(Strict):
    """Who reports numbers, of which machine, and how they were read."""

    hardware: str = Field(
        min_length=1,
        description="What it ran on. A card by its usual name, such as `H100 SXM` or `A100`, or by its "
        "driver's, is held to its peak, `H100` alone to that of the fastest; of others it is said that they "
        "are not.",
    )
    gpus: int = Field(1, gt=0, description="How many of them.")
    backend: str | None = Field(
        None, description="Attention backend, for task attention, where a run calls several of them."
    )
    source: str = Field(
        min_length=1, description="Where it is printed: an address, or a document and its part."
    )
    read_from: ReadFrom = Field(description="`table`, `text`, or `plot`: read off a figure by eye.")
    note: str = Field("", description="What readers must know of it, such as that no such card exists.")


class Reported(ReportedOrigin, Frozen):
    """What others report of a run's group, as `run.json` keeps it."""

    numbers: Mapping[str, Printed] = Field(description="By quantity, with the digits that were printed.")


def as_printed(value: float, text: str | None) -> str:
    """A number with the digits that its file has; in Python's shortest form if it is written otherwise."""
    return text if text is not None and re.fullmatch(_PRINTED, text) else repr(value)
