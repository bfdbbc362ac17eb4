"""Which GPUs a process sees is read as CUDA reads it."""

import subprocess

import pytest

from runner.state import gpus


@pytest.mark.parametrize(
    ("value", "devices"),
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
def test_what_names_no_gpu_hides_it_and_those_after_it(value, devices, tmp_path, monkeypatch):
    monkeypatch.setattr(
        gpus, "DEVICES", tmp_path
    )  # a machine that does not tell how many GPUs it has, as WSL
    assert gpus.visible({"CUDA_VISIBLE_DEVICES": value}) == devices


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
    ("stdout", "variables", "mebibytes"),
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
    stdout, variables, mebibytes, tmp_path, monkeypatch
):
    def run(command, **_how):
        if stdout is None:
            raise FileNotFoundError(command[0])
        return subprocess.CompletedProcess(command, 0, stdout)

    monkeypatch.setattr(gpus, "DEVICES", tmp_path)
    monkeypatch.setattr(gpus.subprocess, "run", run)
    assert gpus.memory(variables) == (mebibytes and mebibytes * 2**20)


# ------------------------------------------------------------------------------------------- AMD, a stand-in


GIB = 2**30


@pytest.fixture
def amd(tmp_path, monkeypatch):
    """A machine with two CPUs and AMD GPUs of so many GiB, as their driver shows it; None: not this process's."""
    nodes = tmp_path / "nodes"
    monkeypatch.setattr(gpus, "DEVICES", tmp_path)
    monkeypatch.setattr(gpus, "NODES", nodes)

    def install(*sizes):
        for number, size in enumerate((0, 0, *sizes)):
            bank = nodes / str(number) / "mem_banks" / "0"
            bank.mkdir(parents=True)
            if size is None:  # reading it fails, as it does with the driver
                (nodes / str(number) / "gpu_id").mkdir()
                continue
            (nodes / str(number) / "gpu_id").write_text(f"{number * 4711 if size else 0}\n")
            heap, size_in_bytes = (1, size * GIB) if size else (0, 500 * GIB)
            (bank / "properties").write_text(f"heap_type {heap}\nsize_in_bytes {size_in_bytes}\nflags 0\n")

    return install


@pytest.mark.parametrize(
    ("variables", "devices"),
    [
        ({}, ("0", "1", "2", "3")),
        ({"ROCR_VISIBLE_DEVICES": "2,3"}, ("0", "1")),  # HIP counts what is left from 0
        ({"ROCR_VISIBLE_DEVICES": "GPU-64b6408271eb153b,2"}, ("0", "1")),
        ({"ROCR_VISIBLE_DEVICES": ""}, ()),
        ({"ROCR_VISIBLE_DEVICES": "7"}, ()),
        ({"HIP_VISIBLE_DEVICES": "3,1"}, ("3", "1")),
        ({"HIP_VISIBLE_DEVICES": ""}, ()),
        ({"CUDA_VISIBLE_DEVICES": "3,1"}, ("3", "1")),
        ({"CUDA_VISIBLE_DEVICES": "0,1,2", "HIP_VISIBLE_DEVICES": "2"}, ("2",)),
        ({"ROCR_VISIBLE_DEVICES": "1,2,3", "HIP_VISIBLE_DEVICES": "2,0"}, ("2", "0")),
        ({"ROCR_VISIBLE_DEVICES": "2,3", "CUDA_VISIBLE_DEVICES": "2,3"}, ()),  # there is no third of two
    ],
)
def test_of_amd_gpus_hip_chooses_among_what_rocr_leaves(amd, variables, devices):
    amd(64, 64, 64, 64)
    assert gpus.visible(variables) == devices
    assert gpus.variable(variables) == "HIP_VISIBLE_DEVICES"


def test_an_amd_gpu_that_slurm_keeps_from_this_process_does_not_count(amd):
    amd(64, None, 64)
    assert gpus.visible({}) == ("0", "1")


@pytest.mark.parametrize(
    ("variables", "variable", "devices"),
    [
        ({"ROCR_VISIBLE_DEVICES": "0,1"}, "HIP_VISIBLE_DEVICES", ("0", "1")),
        ({"HIP_VISIBLE_DEVICES": "4,5"}, "HIP_VISIBLE_DEVICES", ("4", "5")),
        # As Slurm sets them for any GPUs, where its administrators do not say which these are.
        ({"ROCR_VISIBLE_DEVICES": "4,5", "CUDA_VISIBLE_DEVICES": "4,5"}, "CUDA_VISIBLE_DEVICES", ("4", "5")),
    ],
)
def test_where_no_file_tells_the_variables_do(amd, variables, variable, devices):
    assert gpus.variable(variables) == variable
    assert gpus.visible(variables) == devices


def test_beside_an_nvidia_gpu_the_amd_gpu_of_a_processor_does_not_count(amd, tmp_path):
    amd(1)
    (tmp_path / "nvidia0").touch()
    assert gpus.variable({"ROCR_VISIBLE_DEVICES": "0"}) == "CUDA_VISIBLE_DEVICES"
    assert gpus.visible({"CUDA_VISIBLE_DEVICES": "0"}) == ("0",)


@pytest.mark.parametrize(
    ("sizes", "variables", "gibibytes"),
    [((64, 64), {}, 64), ((192, 64), {}, 64), ((64,), {"HIP_VISIBLE_DEVICES": ""}, None)],
)
def test_the_memory_of_amd_gpus_is_what_their_driver_says(amd, sizes, variables, gibibytes):
    amd(*sizes)
    assert gpus.memory(variables) == (gibibytes and gibibytes * GIB)


def test_what_hides_amd_gpus_is_named(amd):
    amd(64, 64)
    variables = {"ROCR_VISIBLE_DEVICES": "0,1", "HIP_VISIBLE_DEVICES": "1"}
    description = gpus.described(gpus.visible(variables), variables)
    assert (
        description
        == "the 1 GPU of this machine that ROCR_VISIBLE_DEVICES '0,1' and HIP_VISIBLE_DEVICES '1' show"
    )
