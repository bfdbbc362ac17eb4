"""Which GPUs a process sees is read as CUDA reads it."""

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
