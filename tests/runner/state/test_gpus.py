"""Which GPUs a process sees is read as CUDA reads it."""

import subprocess

import pytest

from runner.state import gpus


@pytest.mark.parametrize(
    ("said", "seen"),
    [
        ("4,5", ("4", "5")),
        (" 4, 5 ", ("4", "5")),
        ("GPU-1f,GPU-2e", ("GPU-1f", "GPU-2e")),
        ("MIG-1f,MIG-GPU-2e/1/0", ("MIG-1f", "MIG-GPU-2e/1/0")),
        ("", ()),
        ("-1", ()),
        ("NoDevFiles", ()),
        ("4,5,", ("4", "5")),
        ("4,-1,5", ("4",)),
        ("4;5", ()),
        ("4,4", ()),
    ],
)
def test_what_names_no_gpu_hides_it_and_those_after_it(said, seen, tmp_path, monkeypatch):
    monkeypatch.setattr(
        gpus, "DEVICES", tmp_path
    )  # a machine that does not tell how many GPUs it has, as WSL
    assert gpus.visible({"CUDA_VISIBLE_DEVICES": said}) == seen


def test_gpus_that_nobody_names_are_counted_from_0(tmp_path, monkeypatch):
    """A container has the files of its GPUs, under the numbers of the machine; CUDA numbers them anew."""
    monkeypatch.setattr(gpus, "DEVICES", tmp_path)
    for name in ("nvidia2", "nvidia11", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()
    assert gpus.visible({}) == ("0", "1")


def test_a_number_that_no_gpu_has_hides_those_after_it(tmp_path, monkeypatch):
    monkeypatch.setattr(gpus, "DEVICES", tmp_path)
    for name in ("nvidia0", "nvidia5"):
        (tmp_path / name).touch()
    assert gpus.visible({"CUDA_VISIBLE_DEVICES": "1,0"}) == ("1", "0")
    assert gpus.visible({"CUDA_VISIBLE_DEVICES": "0,2,1"}) == ("0",)
    assert gpus.visible({"CUDA_VISIBLE_DEVICES": "GPU-1f,GPU-2e"}) == ("GPU-1f", "GPU-2e")


MIXED = "0, GPU-1f, 81559\n1, GPU-2e, 15360\n"


@pytest.mark.parametrize(
    ("listed", "variables", "mebibytes"),
    [
        (MIXED, {}, 15360),
        (MIXED, {"CUDA_VISIBLE_DEVICES": "0"}, 15360),  # CUDA's 0 is the fastest, which may be any
        (MIXED, {"CUDA_VISIBLE_DEVICES": "0", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, 81559),
        (MIXED, {"CUDA_VISIBLE_DEVICES": "GPU-1f"}, 81559),
        (MIXED, {"CUDA_VISIBLE_DEVICES": "GPU-2"}, 15360),
        (MIXED, {"CUDA_VISIBLE_DEVICES": "MIG-1f"}, None),  # a part of a GPU
        (MIXED, {"CUDA_VISIBLE_DEVICES": ""}, None),
        ("0, GPU-1f, [N/A]\n1, GPU-2e, 15360\n", {}, None),
        ("No devices were found\n", {}, None),
        ("", {}, None),
        (None, {}, None),
    ],
)
def test_the_memory_of_gpus_is_that_of_the_smallest_that_may_be_seen(
    listed, variables, mebibytes, tmp_path, monkeypatch
):
    def run(command, **_how):
        if listed is None:
            raise FileNotFoundError(command[0])
        return subprocess.CompletedProcess(command, 0, listed)

    monkeypatch.setattr(gpus, "DEVICES", tmp_path)
    monkeypatch.setattr(gpus.subprocess, "run", run)
    assert gpus.memory(variables) == (mebibytes and mebibytes * 2**20)
