"""What one run is: its validated, frozen configuration, as `run.json` has it. Importing it loads no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Self

from pydantic import (
    AfterValidator,
    Field,
    SerializerFunctionWrapHandler,
    WithJsonSchema,
    create_model,
    model_serializer,
    model_validator,
)

from model.record.case import Case
from model.record.errors import did_you_mean
from model.record.sections import (
    AXES,
    DataConfig,
    Frozen,
    Mismatch,
    ModelConfig,
    ParallelConfig,
    Positive,
    Scalar,
    Seed,
    SharedConfig,
    Strict,
    TaskSection,
)
from model.record.tasks import FIRST, TASKS, sections_of
from model.record.tasks.attention import CallConfig
from model.record.tasks.frontier import FrontierConfig
from model.record.tasks.inference import InferenceConfig
from model.record.tasks.training import Dtype, TrainConfig

__all__ = [
    "AXES",
    "NO_DATA",
    "TASKS",
    "CallConfig",
    "DataConfig",
    "Dtype",
    "FrontierConfig",
    "Frozen",
    "InferenceConfig",
    "Mismatch",
    "ModelConfig",
    "ParallelConfig",
    "Positive",
    "RunConfig",
    "Scalar",
    "Seed",
    "Strict",
    "TrainConfig",
    "sections_of",
]

NO_DATA = "`base` lacks data.path, the Parquet file to read, such as `data: {path: text.parquet}`"


def _is_task(name: str) -> str:
    if name not in TASKS:
        raise ValueError(f"unknown task '{name}' {did_you_mean(name, list(TASKS))}")
    return name


class _RunConfig(SharedConfig):
    """One run, seed included, fully resolved. Its hash is the run's id."""

    task: Annotated[
        str, AfterValidator(_is_task), WithJsonSchema({"enum": list(TASKS), "type": "string"})
    ] = Field(FIRST, description="What the run does; each task has a section of its own.")

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.data is None and "data" in self.section.reads:
            raise ValueError(NO_DATA)
        self.section.check(self)
        return self

    @model_serializer(mode="wrap")
    def _read_by_its_task(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out what the task does not read, and some of what is at its default: ids hash the rest."""
        every = {name for task in TASKS for name in sections_of(task)}
        left_out = every.difference(sections_of(self.task)) | {*self.section.unread}
        left_out |= {"task"} if self.task == FIRST else set()
        left_out |= {"parallel"} if self.parallel == ParallelConfig() else set()
        return {name: value for name, value in dump(self).items() if name not in left_out}

    @property
    def section(self) -> TaskSection:
        """The section of its own task."""
        section: TaskSection = getattr(self, TASKS[self.task].key)
        return section

    @property
    def processes(self) -> int:
        """The number of the run's processes, one a GPU."""
        return self.section.processes(self)

    @property
    def backends(self) -> dict[str, str]:
        """The attention backends that it names, each with the setting that does."""
        return self.section.backends_of(self)

    @property
    def text(self) -> DataConfig:
        """The text of a task that reads one."""
        assert self.data
        return self.data

    @property
    def attention_case(self) -> Case:
        """What this run asks of its attention backend in each of its processes."""
        return self.section.case(self)

    def identity(self) -> dict[str, Any]:
        """What the run's id is a hash of."""
        settings, key = self.model_dump(), self.section.key
        return settings | {key: self.section.identity(settings[key])}

    def unsupported(self) -> dict[str, str]:
        """Why this run cannot start, by setting, each with what to set instead; empty if it can."""
        return self.section.unsupported(self)


if TYPE_CHECKING:

    class RunConfig(_RunConfig):
        """One run, seed included, fully resolved. Its hash is the run's id."""

        train: TrainConfig
        call: CallConfig
        inference: InferenceConfig
        frontier: FrontierConfig

else:  # a task's file alone makes its section part of a configuration
    RunConfig = create_model(
        "RunConfig",
        __base__=_RunConfig,
        __doc__=_RunConfig.__doc__,
        __module__=__name__,
        **{
            section.key: (section, Field(default_factory=section, description=section.purpose))
            for section in TASKS.values()
        },
    )
