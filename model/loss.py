"""What the training minimises."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F

from model.data import IGNORE


def cross_entropy(logits_BTV: Tensor, labels_BT: Tensor) -> Tensor:
    """Mean cross-entropy in nats over the labels that are not padding, in float32; NaN if all are."""
    return F.cross_entropy(logits_BTV.flatten(0, 1).float(), labels_BT.flatten(), ignore_index=IGNORE)
