"""Of a run's plan what tells where the run stands: parsed in a third of the time that the whole takes."""

from __future__ import annotations

from datetime import datetime

from pydantic import AliasPath, BaseModel, Field

from model.config import TrainConfig
from model.disk.files import read
from model.disk.folder import RunFolder
from model.disk.record import SCHEMA_VERSION, Outcome, Version


class RunBrief(BaseModel, frozen=True):
    """Part of `run.json`. The rest of the file is not checked: a RunBrief does not prove a RunRecord."""

    schema_version: Version = SCHEMA_VERSION
    run_id: str
    study: str
    factors: dict[str, str | int | float | bool]
    steps: int = Field(
        TrainConfig.model_fields["steps"].default, validation_alias=AliasPath("config", "train", "steps")
    )
    expected_outcome: Outcome
    because: str | None = None
    requeue: bool = False
    created_at: datetime


def brief_of(folder: RunFolder) -> RunBrief:
    """Part of a run's plan. Raises Unreadable."""
    return read(f"{folder.path}/run.json", RunBrief)
