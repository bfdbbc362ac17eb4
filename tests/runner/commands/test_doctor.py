"""What `runner doctor` tells the owner of an old GPU."""

import os
import shutil
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from model import attention
from model.attention import _reasons, _sdpa
from model.measure import hostmemory
from model.record import backends
from model.record.errors import UserError
from runner.commands import doctor
from runner.inputs.profile import Profile, read_cluster
from tests.amd import stand_in


@pytest.fixture
def found(monkeypatch, root):
    """What doctor says by what it looks at, on a machine without Slurm."""
    monkeypatch.setattr(shutil, "which", lambda *arguments, **options: None)

    def ask(**keys):
        cluster = read_cluster("local")
        profile = Profile.model_validate(keys) if keys else cluster.profile
        return {check.what: check for check in doctor.checks(replace(cluster, profile=profile), root)}

    return ask


@pytest.fixture
def t4(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda *number: "Tesla T4")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (7, 5))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda number: SimpleNamespace(uuid="none"))
    monkeypatch.setattr(_reasons, "_gpu_is_there", lambda case: [])
    monkeypatch.setattr(_sdpa, "refusals", lambda *a, **k: [])  # PyTorch would ask the GPU


def test_a_t4_is_told_to_train_in_float32_and_what_runs_in_it(t4, found):
    checks = found()
    assert "use --set train.dtype=float32" in checks["gpu"].found
    assert checks["attention math"].works
    assert checks["attention efficient"].works
    assert "Ampere" in checks["attention flash"].found
    assert not any("dtype=float16" in check.found for check in checks.values())


@pytest.mark.fault
def test_a_backend_that_cannot_be_loaded_does_not_hide_the_others(t4, found, monkeypatch):
    load = attention.load

    def broken(name):
        if name == "flex":
            raise UserError("'flex' cannot be imported")
        return load(name)

    monkeypatch.setattr(attention, "load", broken)
    checks = found()
    flex = checks["attention flex"]
    assert (flex.works, flex.found) == (False, "'flex' cannot be imported")
    assert checks["attention math"].works


@pytest.mark.parametrize(
    ("takes", "means"), [(True, "a control group"), (False, "watching each run"), (None, "watching each run")]
)
def test_a_memory_limit_is_by_a_control_group_only_if_that_takes_a_process(found, monkeypatch, takes, means):
    class Group:
        def add(self, pid):
            os.kill(pid, 0)  # it runs
            return takes

        def remove(self):
            pass

    monkeypatch.setattr(hostmemory.ControlGroup, "make", lambda *about: None if takes is None else Group())
    assert found()["memory limit"].found == f"3.0 GiB per process (`memory` of profile local), by {means}"


def test_no_backend_tells_anybody_to_train_in_float16(t4):
    for name in backends.names():
        for dtype in ("bfloat16", "float32"):
            case = attention.Case("cuda", dtype, 1, 4096, 32, 8, 128)
            assert "dtype=float16" not in "; ".join(attention.load(name).unsupported_reasons(case))


@pytest.mark.parametrize(
    ("values", "finding"),
    [
        ((3.0, 1980, ""), "runs record energy, clocks, and what throttles them"),
        ((None, 1980, ""), "runs cannot record energy: "),
        ((None, None, None), "runs cannot record energy, clocks, what throttles them: "),
    ],
)
def test_what_a_gpu_does_not_tell_of_itself_is_said(t4, found, monkeypatch, values, finding):
    for name, value in zip(("joules", "sm_mhz", "throttle_reasons"), values, strict=True):
        monkeypatch.setattr(doctor.Gpu, name, lambda _gpu, value=value: value)
    sensors = found()["sensors"]
    assert sensors.found.startswith(finding)
    assert sensors.works == (None not in values)


SLURM = {"executor": "slurm", "cpus": 3, "gpus": 1, "gpus_per_node": 4, "max_parallel": 8}


@pytest.mark.parametrize(
    ("profile", "works", "finding"),
    [
        ({**SLURM, "slurm": {}}, True, "per run: 2 on 1 node, 4 on 1 node, 8 on 2 nodes, 16 on 4 nodes; each with 3 CPUs and a GPU"),
        ({**SLURM, "slurm": {"exclusive": True}}, True, "per run: 2 on 1 node (2 such runs share it), 4 on 1 node, 8"),
        ({**SLURM, "gpus_per_node": None, "slurm": {}}, False, "2 processes need a profile that sets `gpus_per_node`: add it"),
        ({"executor": "local", "cpus": 1, "processes_per_node": 4}, True, "per run: 2 on 1 node, 4 on 1 node; each with 1 CPU"),
        ({"executor": "local", "gpus": 1}, False, "2 processes need 2 GPUs, but this machine has 1"),
    ],
)  # fmt: skip
def test_what_a_run_of_several_processes_would_get_is_said(t4, found, profile, works, finding):
    check = found(**profile)["processes"]
    assert check.found.startswith(finding)
    assert check.works == works
    assert not check.needed


def test_what_another_triton_is_needed_for_is_said(found, monkeypatch):
    monkeypatch.setattr("model.record.versions.version", {"torch": "2.9.1", "triton": "3.5.1"}.get)
    optimizer = found()["train.optimizer=adamw_one_pass"]
    assert not optimizer.works
    assert optimizer.found.startswith("needs triton 3.6 or later, not 3.5.1")


def test_a_torch_that_is_too_old_is_said_without_importing_it(found, monkeypatch):
    monkeypatch.setattr("model.record.versions.version", {"torch": "2.8.0+cu128"}.get)
    checks = found()
    assert checks["torch"].mark == "FAILS"
    assert checks["torch"].found.startswith("needs torch 2.9 or later, not 2.8.0+cu128")
    assert not {"gpu", "sensors", "attention math"} & {*checks}, "nothing else is asked of it"


@pytest.mark.parametrize(("architecture", "float8"), [("gfx90a", False), ("gfx942", True)])
def test_the_owner_of_amd_gpus_is_told_of_rocm_and_what_was_not_measured(
    found, monkeypatch, architecture, float8
):
    stand_in(monkeypatch, architecture)
    monkeypatch.setattr("model.record.versions.version", {"torch": "2.11.0+rocm7.1", "triton": "3.6.0"}.get)
    monkeypatch.setattr("model.training.float8.find_spec", lambda name: True)
    monkeypatch.setattr(_reasons, "package", lambda *arguments: [])
    monkeypatch.setattr(_sdpa, "refusals", lambda *arguments, **options: [])
    checks = found()
    assert checks["torch"].found.endswith("ROCm, HIP 6.4.43484-123eb5128")
    assert f"({architecture}): no backend was measured on AMD GPUs yet" in checks["gpu"].found
    assert checks["train.float8"].works is float8
    assert not checks["sensors"].works
    assert not any("nvidia" in check.found for check in checks.values())
    works = {what.removeprefix("attention ") for what, check in checks.items() if check.works}
    assert works >= {"auto", "math", "efficient", "flash", "flex", "portable", "tiled"}
    assert not works & {"cudnn", "custom", "flash1", "flash2", "flash3", "flash4"}
