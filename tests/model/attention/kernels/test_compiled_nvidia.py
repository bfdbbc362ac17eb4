"""`portable` and `flash1` compile for Turing, Ampere, Ada and Hopper, which needs no GPU, and fit there."""

import json
import subprocess
import sys
from functools import cache

import pytest

pytest.importorskip("triton", reason="needs triton: pip install 'assay-studies[dev]'")

from model.record import versions
from tests.conftest import REPOSITORY, environment

# The most shared memory that a program may have, by compute capability (CUDA's programming guide).
SHARED_BYTES = {"75": 64 * 1024, "80": 163 * 1024, "89": 99 * 1024, "90": 227 * 1024}
KERNELS = {
    "portable": {"_portable_forward", "_portable_backward_dq", "_portable_backward_dkdv"},
    "flash1": {"_flash1_forward", "_flash1_backward"},
}
HEAD_DIMS = {"portable": (64, 128, 256), "flash1": (16, 64, 128)}  # of smaller ones the tiles are those of 64


@cache
def compiled(name: str, capability: str) -> dict[str, dict]:
    """Slow: a minute where Triton's cache has none of them."""
    if reasons := versions.lacking(f"attention={name}"):
        pytest.skip("; ".join(reasons))
    done = subprocess.run(
        [sys.executable, "-m", "tests.model.attention.kernels.compiled_nvidia", name, capability],
        cwd=REPOSITORY, env=environment(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("capability", SHARED_BYTES)
@pytest.mark.parametrize("name", KERNELS)
def test_every_kernel_compiles_fits_and_multiplies_as_its_gpu_can(name: str, capability: str) -> None:
    """In tensor cores, but not in float32, nor on Turing, for which Triton makes no matrix instruction."""
    half = "float16" if capability == "75" else "bfloat16"
    precisions = (half,) if name == "portable" else (half, "float32")
    found = compiled(name, capability)
    wanted = {
        f"{kernel} D{head_dim} {precision}"
        for kernel in KERNELS[name]
        for head_dim in HEAD_DIMS[name]
        for precision in precisions
    }
    assert set(found) >= wanted
    for label in wanted:
        kernel = found[label]
        assert kernel["shared_bytes"] <= SHARED_BYTES[capability], label
        # Between two tiles of keys: threads of flash1 read what others have written, which no interpreter shows.
        assert kernel["barriers"] == (1 if name == "flash1" else 0), label
        if capability == "75" or label.endswith("float32"):
            assert not kernel["instructions"], label
            continue
        assert kernel["instructions"], label
        if " D256 " not in label:  # whose tiles are small on Hopper, and spill
            assert kernel["stack_bytes"] <= 256, label  # some, outside of the loops, cost little
            assert ("wgmma.mma_async" in kernel["instructions"]) is (capability == "90"), label
