"""What processes tell each other in a step: no parameter and no gradient more often than their way needs.

A "+" is an all-gather, a "-" a reduce-scatter, a "=" an all-reduce; E the embedding, B a block, H norm and
head, P all parameters together, n the norms of their gradients, l the loss; x is as large as what a block takes and gives,
and so are keys and values together here.
"""

import pytest
from torch.utils._python_dispatch import TorchDispatchMode

from model.measure.flops import block_parameters, parameter_count
from model.measure.memory import peak_memory, trained_memory
from model.measure.profiler import most_allocated
from model.record.config import RunConfig
from model.record.text import Source
from model.training.trainer import train
from tests.model.training.parallel.processes import together
from tests.model.training.parallel.test_equality import config, texts  # noqa: F401

# By PyTorch's operator: its sign, and which of its arguments is whole.
KINDS = {
    "_allgather_base_": ("+", 0),
    "_reduce_scatter_base_": ("-", 1),
    "allreduce_": ("=", 0),
    "all_reduce": ("=", 0),
}


class Traffic(TorchDispatchMode):
    """The collectives in their order, each with how many numbers take part in it."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if (name := func.overloadpacket.__name__) in KINDS:
            mark, place = KINDS[name]
            tensors = args[place] if isinstance(args[place], list) else [args[place]]
            self.seen.append((mark, sum(tensor.numel() for tensor in tensors)))
        return func(*args, **(kwargs or {}))


def seen_in_a_step(world, texts, config):  # noqa: F811
    trained = train(config, Source(texts), lambda record: None, world=world)
    with Traffic() as traffic:
        trained.step()
    return traffic.seen


def in_letters(traffic, config):
    """As the module says."""
    model = config.model
    table = model.vocab_size * model.dim
    letters = {
        table: "E",
        block_parameters(model): "B",
        table + model.dim: "H",
        parameter_count(model): "P",
        3 + 9 * model.layers: "n",
        1: "l",
        config.train.batch_size * config.train.sequence_length * model.dim: "x",
    }
    return " ".join(mark + letters[size] for mark, size in traffic)


TWICE, ONCE = "+E +B +B +H +B -H +B -B -B -E", "+E +B +B +H -H -B -B -E"
# By what is asked: the way, the parts of a batch, and the collectives of a step.
STEPS = [
    ({"shard": 2}, 1, f"{TWICE} =l =n"),
    ({"shard": 2}, 2, f"{TWICE} {TWICE} =l =n"),
    ({"shard": 2, "reshard": False}, 1, f"{ONCE} =l =n"),
    ({"shard": 2, "reshard": False}, 2, f"{ONCE} -H -B -B -E =l =n"),
    ({"context": 2}, 1, "+E +B +x +B +x +H +B -H +B -x -B -x -B -E =l =n"),
    ({"tensor": 2}, 1, "=x =x =x =x =x =x =x =x =l =n"),
    ({"replicate": 2}, 1, "=P =l"),
    ({"replicate": 2}, 2, "=P =l"),
]


@pytest.mark.parametrize(("way", "parts", "expected"), STEPS)
def test_a_step_has_no_collective_too_many(way, parts, expected, texts):  # noqa: F811
    """The head's gradient is on its way before any block's; what is kept is gathered once a step."""
    split_config = config(way, accumulate=parts)
    for traffic in together(seen_in_a_step, texts, split_config, **way):
        assert in_letters(traffic, split_config) == expected


def deep(way, parts):
    """Of eight layers, so that the largest peak is at the loss."""
    base = config(way, accumulate=parts).model_dump()
    sizes = {"dim": 64, "layers": 8}
    return RunConfig.model_validate({**base, "model": {**base["model"], **sizes}})


def allocated_in_a_step(world, texts, config, limit):  # noqa: F811
    """In a calm step of the calmer process: what gloo's threads still send is there for longer, where they are late."""
    step = train(config, Source(texts), lambda record: None, world=world).step
    for _ in range(40):
        smallest = min(world.gather(most_allocated(step)))
        if smallest <= limit:
            break
    return smallest


@pytest.mark.parametrize("parts", [1, 2])
def test_a_step_takes_the_memory_that_is_forecast_of_it(parts, texts):  # noqa: F811
    """Beside parameters and states, which are there before; every whole block is held, or none."""
    ways = {"shard": 2}, {"shard": 2, "reshard": False}, {"replicate": 2}, {"context": 2}, {"tensor": 2}
    for way in ways[: 5 if parts == 1 else 2]:
        deep_config = deep(way, parts)
        copies = 4 if "replicate" in way else 3  # DDP also has a place for each gradient
        forecast = peak_memory(deep_config) - copies * trained_memory(deep_config) // 4
        smallest, _ = together(allocated_in_a_step, texts, deep_config, 1.05 * forecast, **way)
        assert 0.95 * forecast < smallest < 1.05 * forecast
