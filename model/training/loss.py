"""What training minimises: the mean cross-entropy in nats over the labels that are not padding.

Shapes: N tokens, C width (dim), V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from model.training.data import IGNORE
from model.training.llama import Llama


def cross_entropy(logits_BTV: Tensor, labels_BT: Tensor, count: int | None = None) -> Tensor:
    """PyTorch's, in float32; NaN if all labels are padding.

    Args:
        count: labels of the whole batch that are not padding; the result is then this part's share.
    """
    logits_NV, labels_N = logits_BTV.flatten(0, 1).float(), labels_BT.flatten()
    if count is None:
        return F.cross_entropy(logits_NV, labels_N, ignore_index=IGNORE)
    return F.cross_entropy(logits_NV, labels_N, ignore_index=IGNORE, reduction="sum") / _counted(
        count, labels_N
    )


class LinearCrossEntropy(torch.autograd.Function):
    """Output head and loss in one: logits stay in the head's precision, and their gradient replaces them.

    The N x V values are held once, while PyTorch also holds copies in float32. Nothing is computed twice:
    6 N C V FLOP, forward and backward.
    """

    @staticmethod
    def forward(ctx: Any, x_NC: Tensor, weight_VC: Tensor, labels_N: Tensor, count: Tensor) -> Tensor:
        """The loss in float32: the sum over the labels, divided by `count`."""
        from model.training.kernels.cross_entropy import loss_and_gradient

        logits_NV = x_NC @ weight_VC.T
        loss = loss_and_gradient(logits_NV, labels_N, count, IGNORE)
        ctx.save_for_backward(x_NC, weight_VC, logits_NV)
        return loss

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None, None]:
        """Gradients by the head's input and weight."""
        x_NC, weight_VC, gradient_NV = ctx.saved_tensors
        scale = gradients[0].to(x_NC.dtype)  # applied to the small factors
        return (gradient_NV @ weight_VC) * scale, gradient_NV.T @ (x_NC * scale), None, None


def linear_cross_entropy(
    x_BTC: Tensor, weight_VC: Tensor, labels_BT: Tensor, count: int | None = None
) -> Tensor:
    """`cross_entropy` of the head's logits, which never exist in float32."""
    labels_N = labels_BT.flatten()
    given = x_BTC.flatten(0, 1), weight_VC, labels_N, _counted(count, labels_N)
    loss: Tensor = LinearCrossEntropy.apply(*given)  # type: ignore[no-untyped-call]  # torch leaves it so
    return loss


def _counted(count: int | None, labels_N: Tensor) -> Tensor:
    """The number of labels to divide by, as a tensor on the device, so that the host need not wait for it."""
    if count is None:
        return (labels_N != IGNORE).sum().float()
    return torch.full((), count, dtype=torch.float32, device=labels_N.device)


def _apart(model: Llama, inputs_BT: Tensor, labels_BT: Tensor, count: int) -> Tensor:
    return cross_entropy(model(inputs_BT), labels_BT, count)


def _joined(model: Llama, inputs_BT: Tensor, labels_BT: Tensor, count: int) -> Tensor:
    loss: Tensor = model.head(
        model.hidden(inputs_BT), partial(linear_cross_entropy, labels_BT=labels_BT, count=count)
    )
    return loss


Loss = Callable[[Llama, Tensor, Tensor, int], Tensor]  # (llama, inputs_BT, labels_BT, count of the batch)
LOSSES: Mapping[str, Loss] = {  # by `train.loss`
    "cross_entropy": _apart,
    "linear_cross_entropy": _joined,
}
