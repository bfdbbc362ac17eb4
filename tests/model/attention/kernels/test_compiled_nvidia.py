"""`portable` and `flash1` compile for Turing, Ampere, Ada and Hopper, which needs no GPU, and fit there."""

import json
import re
import subprocess
import sys
from functools import cache
from typing import Any

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
# Of smaller head dims the tiles are those of 64. In 16 bits all are compiled, but for Ada those alone whose tiles or memory
# are not an A100's; with dropout one for each GPU. In float32, whose tiles are the same for all, they are compiled where
# memory is smallest, which on Turing has no room for 256; and one where tensor cores would take it.
CASES = {
    ("portable", "75"): ("D64 float16", "D128 float16", "D256 float16", "D128 float16 dropout", "D64 float32", "D128 float32"),
    ("portable", "80"): ("D64 bfloat16", "D128 bfloat16", "D256 bfloat16", "D64 bfloat16 dropout"),
    ("portable", "89"): ("D128 bfloat16", "D256 bfloat16", "D256 bfloat16 dropout", "D256 float32"),
    ("portable", "90"): ("D64 bfloat16", "D128 bfloat16", "D256 bfloat16", "D128 bfloat16 dropout", "D64 float32"),
    ("flash1", "75"): ("D16 float16", "D64 float16", "D128 float16", "D16 float32", "D64 float32", "D128 float32"),
    ("flash1", "80"): ("D16 bfloat16", "D64 bfloat16", "D128 bfloat16"),
    ("flash1", "89"): ("D128 bfloat16",),
    ("flash1", "90"): ("D16 bfloat16", "D64 bfloat16", "D128 bfloat16", "D64 float32"),
}  # fmt: skip
# A tile, by what has it: queries and keys. It has no room in the shared memory of an Ada, and some in a Hopper's.
TILES = {"portable": ("64", "128"), "flash1": ("64", "256")}


@cache
def answers() -> dict[tuple[str, ...], Any]:
    """Slow: a minute where Triton's cache has none of them."""
    if reasons := [reason for name in KERNELS for reason in versions.lacking(f"attention={name}")]:
        pytest.skip("; ".join(reasons))
    kernels = [(*target, *labels) for target, labels in CASES.items()]
    cards = [
        (name, "80", *tile, str(SHARED_BYTES[target]))
        for name, tile in TILES.items()
        for target in ("89", "90")
    ]
    questions = [*kernels, *cards]
    completed = subprocess.run(
        [sys.executable, "-m", "tests.model.attention.kernels.compiled_nvidia", json.dumps(questions)],
        cwd=REPOSITORY, env=environment(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert completed.returncode == 0, completed.stderr
    return dict(zip([*CASES, *cards], json.loads(completed.stdout), strict=True))


@pytest.mark.parametrize(("name", "capability"), CASES)
def test_every_kernel_compiles_fits_and_multiplies_as_its_gpu_can(name: str, capability: str) -> None:
    """In tensor cores, but not in float32, nor on Turing, for which Triton makes no matrix instruction."""
    reports = answers()[name, capability]
    expected = {f"{kernel} {label}" for kernel in KERNELS[name] for label in CASES[name, capability]}
    assert set(reports) >= expected
    for label in expected:
        kernel = reports[label]
        assert kernel["shared_bytes"] <= SHARED_BYTES[capability], label
        # Between two tiles of keys: threads of flash1 read what others have written, which no interpreter shows.
        assert kernel["barriers"] == (1 if name == "flash1" else 0), label
        if capability == "75" or "float32" in label:
            assert not kernel["instructions"], label
            continue
        assert kernel["instructions"], label
        if " D256 " not in label and "dropout" not in label:  # whose tiles are small on Hopper, and spill
            # Some, outside of the loops, cost little; where they cost less than smaller tiles, an H100 has said so.
            limit = 512 if (name, label[:19], capability) == ("flash1", "_flash1_forward D64", "90") else 256
            assert kernel["stack_bytes"] <= limit, label
        if " D256 " not in label:
            assert ("wgmma.mma_async" in kernel["instructions"]) is (capability == "90"), label


@pytest.mark.parametrize("name", TILES)
def test_a_tile_is_refused_by_the_shared_memory_of_the_card_and_fits_into_a_larger_one(name: str) -> None:
    """The same kernels, on cards that are not there: one with an Ada's memory, one with a Hopper's."""
    queries, keys = TILES[name]
    (reason,) = answers()[name, "80", queries, keys, str(SHARED_BYTES["89"])]
    match = re.fullmatch(
        rf"needs ([\d,]+) bytes of shared memory for a tile of {queries} x {keys}, and this GPU has 101,376: "
        "change call.tile",
        reason,
    )
    assert match and int(match[1].replace(",", "")) > SHARED_BYTES["89"]
    assert answers()[name, "80", queries, keys, str(SHARED_BYTES["90"])] is None
