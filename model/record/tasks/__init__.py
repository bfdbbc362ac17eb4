"""The tasks that a run can have, one file each: the section that configures it, and what follows from that.

A file defines `section`, a class of `TaskSection`; its name is the task's.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

from model import modules
from model.record.sections import TaskSection

FIRST = "training"  # the task of a study that names none

# By task; the task of most studies first.
TASKS: dict[str, type[TaskSection]] = {
    name: import_module(f"model.record.tasks.{name}").section
    for name in sorted(modules(Path(__file__).parent), key=lambda name: (name != FIRST, name))
}


def sections_of(task: str) -> tuple[str, ...]:
    """The sections of a configuration that a task reads, its own first."""
    return TASKS[task].key, *TASKS[task].reads
