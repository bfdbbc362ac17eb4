"""This project's Triton kernels compile for AMD's MI200 and MI300, which needs no GPU, and fit there. None was run on one."""

import json
import subprocess
import sys
from functools import cache

import pytest

pytest.importorskip("triton", reason="needs triton: pip install 'assay-studies[dev]'")

from model import attention
from model.record import versions
from tests.conftest import REPOSITORY, environment

SHARED_BYTES = 64 * 1024  # of a program on MI200 and MI300, where it is called LDS
THREADS = 1024  # of a program
KERNELS = {"_portable_forward", "_portable_backward_dq", "_portable_backward_dkdv"}
ATTENTION = {f"{kernel} D{head_dim}" for kernel in KERNELS for head_dim in (16, 64, 128, 256)}


@cache
def compiled(architecture: str) -> dict[str, dict]:
    """Slow: half a minute where Triton's cache has none of them."""
    if reasons := versions.lacking("attention=portable"):
        pytest.skip("; ".join(reasons))
    done = subprocess.run(
        [sys.executable, "-m", "tests.model.attention.kernels.compiled_amd", architecture],
        cwd=REPOSITORY, env=environment(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("architecture", attention.load("portable").supports.amd)
def test_every_kernel_compiles_and_fits_into_the_memory_and_threads_of_a_program(architecture: str) -> None:
    found = compiled(architecture)
    assert set(found) >= {f"{name}{of}" for name in ATTENTION for of in ("", " float32", " dropout")} | {
        f"{each} training" for each in ("_step", "_sum_of_squares", "_norm", "_row")
    }
    for name, said in found.items():
        assert said["shared_bytes"] <= SHARED_BYTES, name
        assert said["threads"] <= THREADS, name


@pytest.mark.parametrize("architecture", attention.load("portable").supports.amd)
def test_attention_multiplies_in_matrix_cores_and_keeps_its_numbers_in_registers(architecture: str) -> None:
    for name in ATTENTION:
        said = compiled(architecture)[name]
        assert not said["without_matrix_cores"], name
        assert said["stack_bytes"] <= 128, name  # some, outside the loops, cost little
