"""Whether a study asks for verdicts on quantities that runs of its task have."""

from __future__ import annotations

from collections.abc import Iterator

from model.record.config import Task
from runner.inputs.document import Problem
from runner.inputs.study import Study

_TRAINS = "runs of task {task} have no loss; only those of task training do: leave out `loss`"
_COMPARES = (
    "'{key}' has no effect on task {task}: each run compares its backends itself, call by call; "
    "leave it out, and give `repeats` to measure in several processes"
)


def unmeasured(study: Study, scale: str, task: Task) -> Iterator[Problem]:
    """The keys that judge quantities which no run of the task measures."""
    design = study.design(scale)
    if task == "attention":
        for key in ("baseline", "margins", "until"):
            if getattr(design, key) and (key != "margins" or design.margins.stated):
                yield Problem(study.key_at(scale, key), _COMPARES.format(key=key, task=task))
    elif task != "training" and design.margins.loss is not None:
        yield Problem(study.key_at(scale, "margins", "loss"), _TRAINS.format(task=task))
