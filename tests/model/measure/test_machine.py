"""Facts about the machine are this process's own."""

import subprocess
import sys

import pytest

from model.measure import machine
from model.measure.machine import others, peak_memory_bytes


@pytest.mark.fault
def test_the_peak_of_a_run_is_not_that_of_the_launcher_that_started_it():
    large = bytearray(b"1") * (256 * 2**20)
    del large
    assert peak_memory_bytes("cpu") > 256 * 2**20
    code = "from model.measure.machine import peak_memory_bytes; print(peak_memory_bytes('cpu'))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert 2**20 < int(done.stdout) < 128 * 2**20


@pytest.mark.parametrize(
    ("listed", "users"),
    [
        ("GPU-a, 7\n", 0),
        ("GPU-a, 7\nGPU-a, 8\nGPU-a, 9\n", 2),
        ("GPU-a, 7\nGPU-b, 8\n", 0),
        ("GPU-a, 8\n", None),
        ("", None),
        ("No devices were found\n", None),
    ],
)
def test_other_users_of_the_gpu_are_counted_only_where_this_process_is_listed_too(listed, users):
    assert others(listed, 7) == users


def test_every_package_that_computes_is_among_the_versions(monkeypatch):
    monkeypatch.setattr(machine, "version", lambda package: f"1.{len(package)}")
    assert {"torch": "1.5", "triton": "1.6", "torchao": "1.7"}.items() <= machine.versions().items()
