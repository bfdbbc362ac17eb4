"""Runs on this machine see the GPUs that the queue gives them, and no others."""

import json
import re

import pytest

from model.record.errors import UserError
from model.record.folder import RunFolder
from runner.execute import local
from runner.inputs.profile import read_cluster
from runner.state import gpus
from runner.state.attempts import JobShape, NextAttempt
from tests.analysis.fabricate import Folder, plan

# Stands in for a run: writes which GPUs it sees.
SEES = """#!/bin/sh
echo "${HIP_VISIBLE_DEVICES-$CUDA_VISIBLE_DEVICES}" > "$PWD/gpus"
until [ "$(ls "$RUNS"/*/attempt-1/gpus | wc -l)" -ge "$TOGETHER" ]; do sleep 0.05; done
"""


@pytest.fixture
def seen(root, tmp_path, monkeypatch):
    """The GPUs that runs of so many processes see; each ends when `together` runs have been started."""
    (job := tmp_path / "job").write_text(SEES)
    job.chmod(0o755)

    monkeypatch.setattr(gpus, "DEVICES", tmp_path)  # whatever this machine has
    monkeypatch.setattr(gpus, "NODES", tmp_path)

    def see(*processes, together=1, visible="4,5,6", **keys):
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        if visible is not None:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        env = {"RUNS": str(root / "backends"), "TOGETHER": str(together)} | keys.pop("env", {})
        settings = {"executor": "local", "gpus": 1, "python": str(job), "env": env} | keys
        (path := tmp_path / "c.yaml").write_text(
            "".join(f"{key}: {json.dumps(settings[key])}\n" for key in settings)
        )
        cluster = read_cluster(str(path))
        folders = [RunFolder(Folder(root, plan(f"r{number}")).path) for number in range(len(processes))]
        tasks = [
            NextAttempt(folder, 1, folder.path.name, 1, JobShape(None, None, None, count))
            for folder, count in zip(folders, processes, strict=True)
        ]
        local.run_queue(tasks, cluster, local.Watcher())
        return [(folder.attempt(1).path / "gpus").read_text().strip() for folder in folders]

    return see


def test_parallel_runs_get_gpus_of_their_own(seen):
    assert seen(1, 1, together=2, max_parallel=2) == ["4", "5"]


def test_a_run_gets_a_gpu_for_each_process(seen):
    assert seen(2, 1, 3) == ["4,5", "4", "4,5,6"]


def test_a_run_waits_until_enough_gpus_are_free_for_it(seen):
    """The first two run at once; were the third to start beside them, it would have no GPUs of its own."""
    assert seen(1, 2, 3, together=2, max_parallel=3) == ["4", "5,6", "4,5,6"]


def test_a_run_that_is_alone_sees_what_the_launcher_sees(seen):
    assert seen(1, 1) == ["4,5,6", "4,5,6"]


def test_gpus_that_the_profile_names_are_shared_out(seen):
    env = {"CUDA_VISIBLE_DEVICES": "GPU-a, GPU-b,GPU-c"}
    assert seen(1, 2, together=2, max_parallel=2, env=env) == ["GPU-a", "GPU-b,GPU-c"]


def test_amd_gpus_are_shared_out_by_hips_variable(seen):
    """Of those that ROCR_VISIBLE_DEVICES leaves, counted from 0."""
    env = {"ROCR_VISIBLE_DEVICES": "4,5,6"}
    assert seen(1, 2, together=2, max_parallel=2, visible=None, env=env) == ["0", "1,2"]


@pytest.mark.refused
@pytest.mark.parametrize(
    ("processes", "keys", "message"),
    [
        (
            [1],
            {"max_parallel": 4},
            "c.yaml:5:1: max_parallel 4 x gpus 1 is more than the 3 GPUs of this machine",
        ),
        (
            [1, 4],
            {},
            "c.yaml:2:1: a run of 4 processes, each with a GPU, is more than the 3 GPUs of this machine",
        ),
        ([2], {"visible": ""}, "the 0 GPUs of this machine that CUDA_VISIBLE_DEVICES '' shows"),
        ([3], {"visible": "4,5,"}, "the 2 GPUs of this machine that CUDA_VISIBLE_DEVICES '4,5,' shows"),
        ([2], {"visible": "-1"}, "the 0 GPUs of this machine that CUDA_VISIBLE_DEVICES '-1' shows"),
        ([2], {"visible": None}, "nvidia0, as in WSL, name them with CUDA_VISIBLE_DEVICES"),
        (
            [3],
            {"gpus_per_node": 2},
            "c.yaml:5:1: 3 processes are too many for this machine, since `gpus_per_node` is 2",
        ),
        (
            [9],
            {"gpus": 0},
            "c.yaml:1:1: 9 processes are too many for this machine, since `processes_per_node` is 8",
        ),
    ],
)
def test_runs_that_need_more_than_there_is_are_refused_before_any_is_claimed(
    root, seen, processes, keys, message
):
    with pytest.raises(UserError, match=re.escape(message)):
        seen(*processes, **keys)
    assert not list(root.glob("backends/*/attempt-*"))
