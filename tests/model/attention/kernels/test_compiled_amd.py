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
    """Slow: a quarter of a minute where Triton's cache has none of them."""
    if reasons := versions.lacking("attention=portable"):
        pytest.skip("; ".join(reasons))
    completed = subprocess.run(
        [sys.executable, "-m", "tests.model.attention.kernels.compiled_amd", architecture],
        cwd=REPOSITORY, env=environment(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert completed.returncode == 0, completed.stderr
    return json.loads(completed.stdout)


AMD = attention.load("portable").supports.amd


@pytest.mark.parametrize("architecture", AMD)
def test_every_kernel_compiles_and_fits_into_the_memory_and_threads_of_a_program(architecture: str) -> None:
    reports = compiled(architecture)
    assert set(reports) >= ATTENTION | {
        f"{kernel} training" for kernel in ("_step", "_sum_of_squares", "_norm", "_row")
    }
    for name, report in reports.items():
        assert report["shared_bytes"] <= SHARED_BYTES, name
        assert report["threads"] <= THREADS, name


def test_float32_and_dropout_are_compiled_at_every_head_dim_for_one_or_the_other() -> None:
    names = {name for architecture in AMD for name in compiled(architecture)}
    assert names >= {f"{name}{suffix}" for name in ATTENTION for suffix in (" float32", " dropout")}


@pytest.mark.parametrize("architecture", AMD)
def test_attention_multiplies_in_matrix_cores_and_keeps_its_numbers_in_registers(architecture: str) -> None:
    for name in ATTENTION:
        report = compiled(architecture)[name]
        assert not report["without_matrix_cores"], name
        assert report["stack_bytes"] <= 128, name  # some, outside the loops, cost little
