"""Facts about the machine are this process's own."""

import subprocess
import sys

import pytest

from model.machine import peak_memory_bytes


@pytest.mark.fault
def test_the_peak_of_a_run_is_not_that_of_the_launcher_that_started_it():
    large = bytearray(b"1") * (256 * 2**20)
    del large
    assert peak_memory_bytes("cpu") > 256 * 2**20
    code = "from model.machine import peak_memory_bytes; print(peak_memory_bytes('cpu'))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert 2**20 < int(done.stdout) < 128 * 2**20
