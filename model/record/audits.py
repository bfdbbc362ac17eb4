"""The record of an audit on disk: a line of an attempt's `audits.jsonl`."""

from __future__ import annotations

from datetime import datetime

from pydantic import Field

from model.record.config import Frozen
from model.record.records import SCHEMA_VERSION, Version


class AuditedTensor(Frozen):
    """What an audit found of one tensor: its slice that came closest to the tolerance, or exceeds it."""

    measured: float | None = Field(
        ge=0, description="Error in roundings of the precision; None if not finite."
    )
    tolerance: float = Field(gt=0, description="The largest error that passes, in the same unit.")
    relative_error: float | None = Field(
        description="||x - exact|| / ||exact|| of all that was audited, for people; None if not finite."
    )
    place: str = Field(description="Which slice, with the model's own numbers of samples and heads.")


class AuditRecord(Frozen):
    """One line of `audits.jsonl`: one attention call of the running model, held to the certificate's rule.

    Layers, samples, heads and rows count from 0.
    """

    schema_version: Version = SCHEMA_VERSION
    step: int = Field(description="Counts from 1. Of a decoded token, the prefill after which it comes.")
    time: datetime
    layer: int
    sample: int = Field(description="Of the batch.")
    first_head: int = Field(description="The first of the query heads that were audited.")
    heads: int = Field(description="How many: those that share one key head.")
    rows: int = Field(description="Tokens: all of the sample, its part, or the one that is decoded.")
    first_row: int = Field(0, description="The first of them, where processes share the sample's tokens.")
    keys: int | None = Field(None, description="How many a decoded token meets; None: a call of training.")
    tensors: dict[str, AuditedTensor] = Field(description="By name: o, dq, dk, dv; those that there are.")
    passed: bool
    reason: str | None = Field(description="What is wrong, as a sentence; None if it passed.")
    seconds: float = Field(description="Taken by the computation in float64, outside of the step's time.")

    @property
    def where(self) -> str:
        """What was audited: `step 12, layer 3, sample 0, heads 4 to 7, rows 0 to 4095`.

        Or `decoding with 4100 keys, layer 3, sample 0, heads 4 to 7`.
        """
        last = self.first_head + self.heads - 1
        heads = f"heads {self.first_head} to {last}" if self.heads > 1 else f"head {last}"
        if self.keys is not None:
            decoding = f"decoding with {self.keys} keys"
            return f"{decoding}, layer {self.layer}, sample {self.sample}, {heads}"
        rows = f"rows {self.first_row} to {self.first_row + self.rows - 1}"
        return f"step {self.step}, layer {self.layer}, sample {self.sample}, {heads}, {rows}"
