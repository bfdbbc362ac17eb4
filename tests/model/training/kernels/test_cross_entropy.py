"""The joined head and loss give PyTorch's loss and gradients, and hold the logits once."""

import pytest
import torch

from model.record import versions
from model.training.data import IGNORE
from model.training.loss import cross_entropy, linear_cross_entropy

pytestmark = pytest.mark.skipif(
    bool(versions.lacking("train.loss=linear_cross_entropy")), reason="this triton is too old for it"
)

WIDTH, VOCABULARY = 16, 9001  # more logits than a program holds at a time


def inputs(device, dtype=torch.float32, scale=1.0):
    rng = torch.Generator().manual_seed(0)
    x_BTC, weight_VC = (
        (scale * torch.randn(shape, generator=rng)).to(device, dtype).requires_grad_()
        for shape in ((2, 6, WIDTH), (VOCABULARY, WIDTH))
    )
    labels_BT = torch.randint(VOCABULARY, (2, 6), generator=rng)
    labels_BT[0, :2], labels_BT[1, 0], labels_BT[1, 1] = IGNORE, 0, VOCABULARY - 1
    return x_BTC, weight_VC, labels_BT.to(device)


@pytest.mark.parametrize("scale", [1.0, 30.0])
def test_loss_and_gradients_are_pytorchs(device, scale):
    x_BTC, weight_VC, labels_BT = inputs(device, scale=scale)
    theirs = cross_entropy(x_BTC @ weight_VC.T, labels_BT)
    ours = linear_cross_entropy(x_BTC, weight_VC, labels_BT)
    assert ours.dtype is torch.float32
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=0)
    for loss in (ours, theirs):
        (3 * loss).backward()  # as accumulation scales it
        loss.gradients = [tensor.grad for tensor in (x_BTC, weight_VC)]
        x_BTC.grad = weight_VC.grad = None
    for gradient, expected in zip(ours.gradients, theirs.gradients, strict=True):
        torch.testing.assert_close(gradient, expected, rtol=1e-5, atol=1e-6 * scale)


def test_padding_has_neither_loss_nor_gradient(device):
    x_BTC, weight_VC, labels_BT = inputs(device)
    linear_cross_entropy(x_BTC, weight_VC, labels_BT).backward()
    assert not x_BTC.grad[0, :2].any()
    assert x_BTC.grad[0, 2:].any(dim=-1).all()


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of NumPy, which interprets the kernel
def test_a_batch_of_padding_alone_has_no_loss(device):
    x_BTC, weight_VC, labels_BT = inputs(device)
    assert linear_cross_entropy(x_BTC, weight_VC, torch.full_like(labels_BT, IGNORE)).isnan()


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_logit_that_is_not_finite_gives_a_loss_that_is_not(device):
    x_BTC, weight_VC, labels_BT = inputs(device)
    with torch.no_grad():
        x_BTC[1, 3] = torch.nan
    assert linear_cross_entropy(x_BTC, weight_VC, labels_BT).isnan()


@pytest.mark.gpu
def test_logits_exist_once_in_16_bits():
    tokens, vocabulary = 1024, 65536
    x_BTC = torch.randn(1, tokens, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    weight_VC = torch.randn(vocabulary, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    labels_BT = torch.randint(vocabulary, (1, tokens), device="cuda")
    linear_cross_entropy(
        x_BTC, weight_VC, labels_BT
    ).backward()  # cuBLAS takes its workspace at its first call
    x_BTC.grad = weight_VC.grad = None
    torch.cuda.reset_peak_memory_stats()
    allocated = torch.cuda.memory_allocated()
    linear_cross_entropy(x_BTC, weight_VC, labels_BT).backward()
    logits = 2 * tokens * vocabulary
    assert torch.cuda.max_memory_allocated() - allocated < 1.3 * logits
