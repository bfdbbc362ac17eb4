"""The part of run.json that a run's status needs; parsing it is much faster than parsing the whole file."""

from __future__ import annotations

import os
from datetime import datetime
from typing import Any

from pydantic import AliasChoices, AliasPath, BaseModel, Field

from model.record.config import SECTIONS, TrainConfig
from model.record.files import read
from model.record.folder import RunFolder
from model.record.outcome import Outcome
from model.record.records import SCHEMA_VERSION, Version


class RunBrief(BaseModel, frozen=True):
    """Part of `run.json`. The rest is not validated, so the file may still be an invalid RunRecord."""

    schema_version: Version = SCHEMA_VERSION
    run_id: str
    group: str = ""
    study: str
    repeat: int = 1
    position: int | None = None
    block: int | None = None
    factors: dict[str, str | int | float | bool]
    planned_steps: int = Field(
        TrainConfig.model_fields["steps"].default,
        validation_alias=AliasChoices(*(AliasPath("config", own, "steps") for own, *_ in SECTIONS.values())),
    )
    task: str = Field("training", validation_alias=AliasPath("config", "task"))
    expected_outcome: Outcome
    because: str | None = None
    requeue: bool = False
    created_at: datetime
    imported: dict[str, Any] | None = None

    @property
    def steps(self) -> int | None:
        """Steps that were planned; None if nobody knows, as of most imported runs."""
        known = self.imported is None or "planned_steps" in self.model_fields_set
        return self.planned_steps if known else None

    @property
    def varied(self) -> dict[str, str | int | float | bool]:
        """What can tell runs of one study apart: the factors, and which repeat it is."""
        return {**self.factors, "repeat": self.repeat}


def brief_of(folder: RunFolder) -> RunBrief:
    """Read the status part of a run's run.json. Raises Unreadable."""
    return read(f"{os.fspath(folder)}/run.json", RunBrief)
