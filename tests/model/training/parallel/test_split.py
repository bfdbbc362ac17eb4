"""The precision in which processes add up their gradients is the one that was asked for."""

import pytest
import torch
from torch import nn

from model.record.config import TrainConfig
from model.training.parallel import split
from model.training.parallel.held import is_cut, local
from tests.model.training.parallel.processes import together

# Each small one is less than half of what bfloat16 can tell from 1, all three together are more.
GRADIENTS = (1.0, 3 * 2**-10, 3 * 2**-10, 3 * 2**-10)
ROUNDED_ONCE = 1 + 2**-7
WAYS = {"FSDP2": {"shard": 4}, "replicas": {"replicate": 4}, "HSDP": {"replicate": 2, "shard": 2}}


def averaged(world, reduce):
    """A gradient over the processes, and whether its parameter is split."""
    module = split.root(nn.Linear(8, 8, bias=False, dtype=torch.bfloat16), TrainConfig(reduce=reduce), world)
    inputs = torch.full((1, 8), GRADIENTS[world.place.rank], dtype=torch.bfloat16)
    module(inputs).sum().backward()
    (weight,) = module.parameters()
    (gradient,) = local([weight.grad])
    return gradient.float().numpy().tolist(), is_cut(weight)


@pytest.mark.parametrize("way", WAYS)
def test_gradients_are_added_up_in_float32_and_rounded_once_if_that_is_asked(way):
    for gradient, is_split in together(averaged, "float32", **WAYS[way]):
        assert {number for row in gradient for number in row} == {ROUNDED_ONCE / 4}
        assert is_split


def test_else_replicas_are_whole_and_add_up_in_the_precision_of_their_parameters():
    for gradient, is_split in together(averaged, "dtype", replicate=4):
        assert all(number == pytest.approx(0.25, rel=2**-6) for row in gradient for number in row)
        assert not is_split
