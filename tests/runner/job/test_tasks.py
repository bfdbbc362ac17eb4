"""Each task that a study can name has what an attempt needs to do it."""

import subprocess
import sys

import pytest

from model import modules
from model.record.config import TASKS, RunConfig, sections_of
from runner.inputs.settings import sections
from runner.job import tasks
from tests.conftest import REPOSITORY


def test_every_task_has_its_file_and_there_is_no_other():
    floors = ("model/record", "runner/job", "analysis/report")
    assert all(set(modules(REPOSITORY / floor / "tasks")) == set(TASKS) for floor in floors)


@pytest.mark.parametrize("task", TASKS)
def test_a_task_reads_sections_that_there_are_and_its_own_first(task):
    own, *_ = sections_of(task)
    assert set(sections_of(task)) <= set(sections())
    assert own not in {name for other in TASKS if other != task for name in sections_of(other)}
    assert {"steps", "dtype"} <= set(sections()[own].model_fields)


@pytest.mark.parametrize("task", TASKS)
def test_a_tasks_file_says_what_to_import_and_what_to_call(task):
    defined = tasks.load(task)
    assert callable(defined.run)
    assert all(name.startswith("model.") for name in defined.imports)


def test_a_record_has_no_section_that_its_task_does_not_read():
    for task in TASKS:
        values = {  # a run of one process does not say so
            "data": {"path": "x"}, "parallel": {"replicate": 2}, "train": {"batch_size": 2},
        }  # fmt: skip
        read = {name: value for name, value in values.items() if name in sections_of(task)}
        config = RunConfig.model_validate({"task": task, **read})
        assert set(sections()) & set(config.model_dump()) == set(sections_of(task))
        assert RunConfig.model_validate_json(config.model_dump_json()) == config


WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None  # to import it fails
from model.record.config import RunConfig
from model.record.errors import Unsupported
from runner.job.tasks import prepare
for name in sys.argv[1:]:
    data, train = {"path": "x.parquet"}, {"dtype": "bfloat16"}
    config = RunConfig.model_validate({"attention": name, "device": "cpu", "data": data, "train": train})
    try:
        prepare(config)
    except Unsupported as error:
        print(name, error.reasons[0])
"""


def test_a_run_whose_case_alone_rules_its_backend_out_ends_before_torch_is_imported():
    names = ("auto", "cudnn", "efficient", "flash", "flex")
    lines = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH, *names], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    gpu = "but the device is 'cpu': use --set device=cuda on a GPU node"
    sums = (
        "sums dK and dV in bfloat16 on a CPU, which loses precision: use --set train.dtype=float32, "
        "or --set attention=math"
    )
    assert lines == [
        f"auto {sums}",
        f"cudnn needs an NVIDIA GPU, {gpu}",
        f"efficient needs a GPU, {gpu}",
        f"flash {sums}",
        f"flex needs a GPU, {gpu}",
    ]
