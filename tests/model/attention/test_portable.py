"""What the portable backend takes, and that it hands the seam's tensors to the kernels as they are."""

from dataclasses import replace

import pytest

from model import attention
from model.attention import _reasons
from model.record import versions
from tests.model.attention.calls import CPU, CUDA

pytestmark = pytest.mark.skipif(
    bool(versions.lacking("attention=portable")), reason="this triton is too old for it"
)

PORTABLE = attention.load("portable")


@pytest.fixture
def on(monkeypatch):
    """Asks for the reasons on a GPU of some compute capability."""

    def ask(capability, **changes):
        monkeypatch.setattr(_reasons, "_gpu_is_there", lambda case: [])
        monkeypatch.setattr(_reasons, "gpu_capability", lambda case: capability)
        return [
            reason
            for reason in PORTABLE.unsupported_reasons(replace(CUDA, **changes))
            if "`triton`" not in reason
        ]

    return ask


@pytest.mark.parametrize("capability", [(8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (12, 0)], ids=str)
@pytest.mark.parametrize("head_dim", [64, 128, 256])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_it_takes_any_length_mask_and_group_on_every_gpu_since_ampere(
    on, capability, head_dim, dtype
) -> None:
    changes = {"sequence_length": 777, "heads": 6, "kv_heads": 2, "causal": False}
    assert not on(capability, head_dim=head_dim, dtype=dtype, **changes)


def test_turing_takes_all_but_bfloat16(on) -> None:
    assert not on((7, 5), dtype="float16")
    assert not on((7, 5), dtype="float32")
    (reason,) = on((7, 5))
    assert reason.endswith("has no bfloat16: use --set train.dtype=float32")


def test_turing_has_no_room_for_head_dim_256_in_float32(on) -> None:
    (reason,) = on((7, 5), dtype="float32", head_dim=256)
    assert reason.startswith("takes head dims up to 128 in float32 on this GPU")
    assert not on((7, 5), dtype="float16", head_dim=256) and not on((8, 6), dtype="float32", head_dim=256)


@pytest.mark.parametrize("tile", [(16, 512), (128, 64)], ids=str)
def test_it_takes_tiles_of_powers_of_two(on, tile) -> None:
    assert not on((9, 0), tile=tile)
    (reason,) = on((9, 0), tile=(tile[0] + 1, tile[1]))
    assert reason.endswith(f"queries or keys, not {tile[0] + 1} x {tile[1]}: change call.tile")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"head_dim": 96}, "takes head dims that are powers of two, not 96"),
        ({"head_dim": 512}, "takes head dims from 16 up to 256, not 512"),
        ({"heads": 4, "kv_heads": 3}, "cannot share"),
    ],
    ids=str,
)
def test_each_limit_is_one_reason(on, changes, reason) -> None:
    (refusal,) = on((8, 0), **changes)
    assert reason in refusal


def test_a_gpu_before_turing_is_refused(on) -> None:
    assert any("7.5 or later" in reason for reason in on((7, 0), dtype="float16"))


def test_a_cpu_is_refused() -> None:
    assert any("--set device=cuda" in reason for reason in PORTABLE.unsupported_reasons(CPU))
