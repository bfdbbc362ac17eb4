"""Dropout is checked from outputs and gradients: honest backends pass, and each planted fault is named."""

from dataclasses import replace

import pytest
import torch

from model import attention
from model.attention import Backend, Launches, Supports, tiled
from model.attention.verify import dropout
from model.record.case import Case
from model.record.errors import Unsupported
from model.training.certify import certify_case

CASE = Case("cpu", "float32", 2, 200, 4, 2, 32)


def failed(attend, probability=0.25):
    backend = Backend("planted", lambda case: [], attend, Launches(), Supports(dropout=True))
    checks = dropout.check(backend, replace(CASE, dropout=probability))
    return {check.name for check in checks if not check.passed}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("name", ["math", "tiled"])
def test_an_honest_backend_drops_what_it_should(name, causal, dtype):
    for probability in (1 / 16, 1 / 2):
        case = replace(CASE, dtype=dtype, causal=causal, dropout=probability)
        checks = dropout.check(attention.load(name), case)
        assert [check.reason for check in checks if not check.passed] == []
        assert {check.name for check in checks} == {
            "scale", "share", "same weights", "independent", "right with dropout",
        }  # fmt: skip


def masked_attention(mask, scale=True):
    """Plain attention whose weights a given function keeps."""

    class Attention(torch.autograd.Function):
        @staticmethod
        def forward(ctx, p, v, left, left_in_backward):
            ctx.save_for_backward(p, v, left_in_backward)
            return p * left @ v

        @staticmethod
        def backward(ctx, do):
            p, v, left = ctx.saved_tensors
            return do @ v.mT * left, (p * left).mT @ do, None, None

    def attend(q, k, v, causal, dropout):
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        k, v = (x.repeat_interleave(2, dim=1) for x in (k, v))
        s = q @ k.mT * q.shape[-1] ** -0.5
        p = s.masked_fill(torch.ones_like(s[0, 0], dtype=torch.bool).triu(1), -torch.inf).softmax(-1)
        left, in_backward = mask(p, dropout)
        factor = 1 / (1 - dropout) if scale else 1.0
        return Attention.apply(p, v, left * factor, in_backward * factor).transpose(1, 2)

    return attend


def drawn(p, probability):
    mask = torch.rand_like(p) >= probability
    return mask, mask


def test_the_plant_without_a_fault_passes():
    assert failed(masked_attention(drawn)) == set()


@pytest.mark.parametrize(
    ("mask", "check_names"),
    [
        (lambda p, x: (drawn(p, x)[0], torch.ones_like(p)), {"same weights", "right with dropout"}),
        (lambda p, x: (drawn(p, x)[0], drawn(p, x)[0]), {"same weights", "right with dropout"}),
        (lambda p, x: drawn(p, 17 / 64), {"share"}),
        (lambda p, x: (drawn(p[:, :1], x)[0].expand_as(p),) * 2, {"independent"}),
        (lambda p, x: (drawn(p[:1], x)[0].expand_as(p),) * 2, {"independent"}),
        (lambda p, x: (drawn(p[..., :64, :], x)[0].repeat(1, 1, 4, 1)[:, :, : p.shape[2]],) * 2, {"independent"}),
        (lambda p, x: (drawn(p[..., :16], x)[0].repeat(1, 1, 1, 13)[..., : p.shape[3]],) * 2, {"independent"}),
        (lambda p, x: (torch.rand(p.shape, generator=torch.Generator().manual_seed(3)) >= x,) * 2, {"independent"}),
    ],
    ids=["none_backward", "others_backward", "share", "heads", "samples", "tiles_of_rows", "tiles_of_keys", "state"],
)  # fmt: skip
def test_each_fault_is_named(mask, check_names):
    assert check_names <= failed(masked_attention(mask))


def test_weights_that_are_left_must_be_larger():
    assert "scale" in failed(masked_attention(drawn, scale=False))


def test_tiled_draws_by_philox():
    """Random123's published answer for a counter and a key of zeros."""
    word, tiling = 0x6627E8D5, tiled.Tiling(False, 8, 8, 0, 0.5, seed=torch.zeros((), dtype=torch.int64))
    left = tiled._left(torch.zeros(1, 1, 1, 8, 8), (0, 1), (0, 8), tiling)
    assert left.flatten().tolist() == [2.0 * ((word >> 4 * n & 15) >= 8) for n in range(8)]


def test_tiles_do_not_change_which_weights_tiled_drops():
    q, k, v = torch.randn(3, 1, 150, 2, 16).unbind()
    outputs = []
    for tile in ((256, 256), (64, 64), (37, 50)):
        torch.manual_seed(1)
        outputs.append(tiled.attend(q, k, v, True, tile, dropout=0.5))
    torch.testing.assert_close(outputs[0], outputs[1])
    torch.testing.assert_close(outputs[0], outputs[2])


def test_a_backend_without_dropout_refuses_it_and_says_which_have_it():
    for name in ("auto", "flash"):
        with pytest.raises(
            Unsupported,
            match="has no dropout on a CPU: choose math or tiled, or use --set train.attention_dropout=0",
        ):
            attention.require(name, replace(CASE, dropout=0.5))


def test_the_gate_of_a_run_with_dropout_checks_it():
    certificate = certify_case("tiled", replace(CASE, sequence_length=64, dropout=0.25))
    assert certificate.verdict == "right" and {"share", "same weights"} <= {
        check.name for check in certificate.checks
    }
    assert certificate.case and certificate.case.dropout == 0.25
    plain = certify_case("tiled", replace(CASE, sequence_length=64))
    assert plain.key != certificate.key and "share" not in {check.name for check in plain.checks}
