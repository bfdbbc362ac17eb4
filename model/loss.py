"""What the training minimises: the mean cross-entropy in nats over the labels that are not padding.

Shapes: N tokens, C width (dim), V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from model.data import IGNORE
from model.llama import Llama


def cross_entropy(logits_BTV: Tensor, labels_BT: Tensor) -> Tensor:
    """PyTorch's, in float32; NaN if all labels are padding."""
    return F.cross_entropy(logits_BTV.flatten(0, 1).float(), labels_BT.flatten(), ignore_index=IGNORE)


class LinearCrossEntropy(torch.autograd.Function):
    """Output head and loss in one: logits stay in the head's precision, and their gradient replaces them.

    Their N x V values are held once, where PyTorch also holds copies in float32. Nothing is computed
    twice: 6 N C V FLOP, forward and backward.
    """

    @staticmethod
    def forward(ctx: Any, x_NC: Tensor, weight_VC: Tensor, labels_N: Tensor) -> Tensor:
        """The mean loss, in float32."""
        from model.kernels.cross_entropy import loss_and_gradient

        logits_NV = x_NC @ weight_VC.T
        loss = loss_and_gradient(logits_NV, labels_N, (labels_N != IGNORE).sum().float(), IGNORE)
        ctx.save_for_backward(x_NC, weight_VC, logits_NV)
        return loss

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        """Gradients by the head's input and weight."""
        x_NC, weight_VC, gradient_NV = ctx.saved_tensors
        scale = gradients[0].to(x_NC.dtype)  # applied to the small factors
        return (gradient_NV @ weight_VC) * scale, gradient_NV.T @ (x_NC * scale), None


def linear_cross_entropy(x_BTC: Tensor, weight_VC: Tensor, labels_BT: Tensor) -> Tensor:
    """`cross_entropy` of the head's logits, which never exist in float32; NaN if all labels are padding."""
    given = x_BTC.flatten(0, 1), weight_VC, labels_BT.flatten()
    loss: Tensor = LinearCrossEntropy.apply(*given)  # type: ignore[no-untyped-call]  # torch leaves it so
    return loss


def _apart(model: Llama, inputs_BT: Tensor, labels_BT: Tensor) -> Tensor:
    return cross_entropy(model(inputs_BT), labels_BT)


def _joined(model: Llama, inputs_BT: Tensor, labels_BT: Tensor) -> Tensor:
    return linear_cross_entropy(model.hidden(inputs_BT), model.head.weight, labels_BT)


LOSSES: Mapping[str, Callable[[Llama, Tensor, Tensor], Tensor]] = {  # by `train.loss`
    "cross_entropy": _apart,
    "linear_cross_entropy": _joined,
}
