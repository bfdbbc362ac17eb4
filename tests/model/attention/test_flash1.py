"""What flash1 takes, and with which reasons it refuses the rest."""

from dataclasses import replace

import pytest

from model import attention
from model.attention import _reasons
from model.record import versions
from tests.model.attention.calls import CPU, CUDA

pytestmark = pytest.mark.skipif(
    bool(versions.lacking("attention=flash1")), reason="this triton is too old for it"
)

FLASH1 = attention.load("flash1")


@pytest.fixture
def on(monkeypatch):
    """Asks for the reasons on a GPU of some compute capability."""

    def ask(capability, **changes):
        monkeypatch.setattr(_reasons, "_gpu_is_there", lambda case: [])
        monkeypatch.setattr(_reasons, "gpu_capability", lambda case: capability)
        return [
            reason
            for reason in FLASH1.unsupported_reasons(replace(CUDA, **changes))
            if "`triton`" not in reason
        ]

    return ask


@pytest.mark.parametrize("capability", [(8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (12, 0)], ids=str)
@pytest.mark.parametrize("head_dim", [16, 24, 64, 96, 128])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_it_takes_any_length_mask_and_group_on_every_gpu_since_ampere(
    on, capability, head_dim, dtype
) -> None:
    changes = {"sequence_length": 777, "heads": 6, "kv_heads": 2, "causal": False}
    assert not on(capability, head_dim=head_dim, dtype=dtype, **changes)


def test_turing_trains_in_float32_and_is_told_so(on) -> None:
    assert not on((7, 5), dtype="float32")
    assert not on((7, 5), dtype="float16")
    (reason,) = on((7, 5), dtype="bfloat16")
    assert reason.endswith("has no bfloat16: use --set train.dtype=float32")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"head_dim": 8}, "takes head dims from 16 up to 128 that are multiples of 8, not 8"),
        ({"head_dim": 20}, "that are multiples of 8, not 20"),
        ({"head_dim": 256}, "up to 128 that are multiples of 8, not 256"),
        ({"heads": 4, "kv_heads": 3}, "cannot share"),
    ],
    ids=str,
)
def test_each_limit_is_one_reason(on, changes, reason) -> None:
    (refusal,) = on((8, 0), **changes)
    assert reason in refusal


def test_a_gpu_before_turing_and_a_cpu_are_refused(on) -> None:
    assert any("--set device=cuda" in reason for reason in FLASH1.unsupported_reasons(CPU))
    assert any("7.5 or later" in reason for reason in on((7, 0), dtype="float32"))
