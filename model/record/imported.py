"""Records of runs that another program made: only what its log says.

An imported run has a run.json of another kind and no ledger. Its attempt has `manifest.json`, `steps.jsonl`
and `result.json` like any other, with None for what is unknown.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from pydantic import Field

from model.record.config import Frozen, Scalar
from model.record.outcome import Outcome
from model.record.records import SCHEMA_VERSION, Version

PREFIX = "log-"  # begins the id of every imported run, and of no other


class Finding(Frozen):
    """Something that a log says and that is wrong, or that a reader of its numbers must know."""

    check: Literal["loss", "flop_per_token", "warm-up", "metrics", "clock", "values", "records"]
    level: Literal["error", "note"]
    sentence: str = Field(description="What is wrong, with its numbers, as the report prints it.")
    evidence: dict[str, Any] = Field(default={}, description="The same numbers by name; runs and steps.")


class Imported(Frozen):
    """Where an imported run comes from, and what was found in its log."""

    format: str = Field(description="Name of the importer.")
    file: str = Field(description="Absolute path of the log when it was imported.")
    part: str | None = Field(None, description="Which run of the file, where a column tells them apart.")
    sha256: str = Field(description="Of the file's content, hexadecimal.")
    imported_at: datetime
    version: str = Field(description="Version of assay-studies that imported it.")
    records: int = Field(description="Records that were imported.")
    not_imported: list[str] = Field(default=[], description="FILE:LINE and why, for each record left out.")
    printed: dict[str, float] = Field(
        default={},
        description="What the log itself says: flop_per_token and peak_flops (tflops and mfu imply them), "
        "and plain means over all records, the first included: tokens_per_second, mfu (percent), tflops.",
    )
    sources: dict[str, str] = Field(
        default={}, description="Where facts come from, by name: flop_per_token, peak_flops, ..."
    )
    findings: list[Finding] = Field(default=[], description="What its log says wrong.")


class ImportedRun(Frozen):
    """`run.json` of an imported run."""

    schema_version: Version = SCHEMA_VERSION
    run_id: str
    group: str = Field(description="Id that runs share which differ by seed or repeat alone.")
    study: str
    title: str
    description: str = ""
    factors: dict[str, Scalar] = Field(description="What varies, by axis.")
    attention: str | None = Field(None, description="Attention backend, as the log or the mapping calls it.")
    seed: int | None = None
    config: dict[str, Any] = Field(default={}, description="The settings that are known, as in RunConfig.")
    expected_outcome: Outcome = Outcome.COMPLETED
    baseline: dict[str, Scalar] | None = Field(
        None, description="Factors that pick the baseline, as the import stated them."
    )
    margins: dict[str, float] = Field(
        default={}, description="Largest difference that does not matter, as the import stated it."
    )
    imported: Imported
    created_at: datetime = Field(description="When the run was first imported.")

    def known(self, dotted: str) -> Any:
        """A setting such as `train.steps`; None if it is unknown."""
        value: Any = self.config
        for key in dotted.split("."):
            value = value.get(key) if isinstance(value, dict) else None
        return value


class ImportedStep(Frozen):
    """One line of an imported run's `steps.jsonl`: a StepRecord with None for what the log does not say."""

    schema_version: Version = SCHEMA_VERSION
    step: int = Field(gt=0)
    steps: int = Field(gt=0)
    time: datetime | None = None
    loss: float | None = None
    learning_rate: float | None = None
    grad_norm: float | None = None
    step_seconds: float | None = Field(None, gt=0)
    tokens: int | None = Field(None, gt=0)
    training_tokens: int | None = None
    memory_bytes: int | None = None
    printed_tokens_per_second: float | None = Field(
        None, gt=0, description="As the log has it, where tokens or seconds are unknown."
    )

    @property
    def tokens_per_second(self) -> float | None:
        """The rate over the interval; as the log has it if tokens or seconds are unknown."""
        if self.tokens and self.step_seconds:
            return self.tokens / self.steps / self.step_seconds
        return self.printed_tokens_per_second
