"""What was not finite first is named, with its step."""

import pytest
import torch

from model.training.meter import Trail

NAMES = ["embedding.weight", "blocks.0.up.weight", "head.weight"]


def trail(*steps):
    history = Trail(NAMES)
    for number, (loss, norms) in enumerate(steps, start=5):
        history.add(number, torch.tensor(loss), torch.tensor(norms))
    return history


FINE = (2.0, [1.0, 1.0, 1.0])
NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        (
            [FINE, (NAN, [NAN] * 3), (NAN, [NAN] * 3)],
            "loss nan at step 6; all gradients of step 5 were finite",
        ),
        ([(INF, [NAN] * 3)], "loss inf at step 5"),
        (
            [FINE, (2.5, [NAN, INF, 1.0])],
            "the gradient of blocks.0.up.weight has norm inf (not finite in all: 2), at step 6; the loss was 2.5",
        ),
        ([(2.5, [1.0, 1.0, NAN])], "the gradient of head.weight has norm nan, at step 5; the loss was 2.5"),
        ([(2.5, [3e38, 3e38, 3e38])], "gradient norm inf at step 5; the loss was 2.5"),
    ],
)
def test_the_first_that_is_not_finite_is_named(steps, message):
    assert trail(*steps).first() == message


def test_a_trail_that_was_cleared_begins_anew():
    history = trail((NAN, [NAN] * 3))
    history.clear()
    history.add(9, torch.tensor(1.0), torch.tensor([NAN, 1.0, 1.0]))
    assert history.first().startswith("the gradient of embedding.weight has norm nan, at step 9")
