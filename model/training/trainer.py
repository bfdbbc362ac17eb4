"""The training loop: one run, from its configuration to its last step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from random import Random

import torch

from model import attention
from model.record.config import RunConfig
from model.record.errors import Diverged, Unsupported
from model.record.records import StepRecord
from model.record.speed import Phase
from model.record.text import Source
from model.training import checkpoint, data, float8
from model.training.audit import Audits, Judge, Keep
from model.training.feed import Feed, Ready
from model.training.keeper import Checkpoints, Keeper
from model.training.llama import Block, Llama, compile_block, drawn
from model.training.meter import Meter, Trail, no_collector
from model.training.parallel.world import ALONE, World
from model.training.profile import Work, mark
from model.training.step import TrainingStep

Report = Callable[[StepRecord], None]


@no_collector()
def train(
    config: RunConfig,
    source: Source,
    report: Report,
    checkpoints: Checkpoints | None = None,
    judge: Judge | None = None,
    audited: Keep | None = None,
    world: World = ALONE,
) -> Trained:
    """Train one run to its last step. All its processes call this, with `checkpoints` and `judge` alike.

    Args:
        report: called with a StepRecord in the first process after step 1, every `log_every` steps, at
            the last step, and before each checkpoint: the records up to a checkpoint cover exactly the steps
            that it holds.
        judge: called between a record and its checkpoint with the copies that audits took since the last
            record; None: no audits.
        audited: called in the first process with what the judge of any process found.

    Returns:
        An object that can do more steps, for a profile.

    Raises:
        Unsupported: the backend, device or precision cannot run here. Nothing else takes its place.
        AuditFailed: the running model's attention is not what float64 gives.
        Diverged: the loss or gradient norm of a reported step is not finite; the record is reported first.
        Interrupted: asked to stop before the last step; the state is saved.
        Unreadable: there is no whole checkpoint in `resume_from`.
        UserError: the checkpoint in `resume_from` is of another configuration or other data, no gradient
            reaches a parameter, or the data file is written to meanwhile.
        OSError: asked to stop, and the state cannot be saved.
    """
    if reasons := config.unsupported():
        raise Unsupported([*reasons.values()])
    device = torch.device(config.device)
    backend = attention.require(config.attention, config.attention_case)
    model = build_model(config, backend, world)
    if config.train.attention_dropout:  # processes have drawn the same weights, and drop others
        drawing = Random(f"dropout {config.seed} {world.place.rank}")  # noqa: S311  no secret
        torch.manual_seed(drawing.getrandbits(63))
    train_on = TrainingStep(config, model, world)
    optimizer = train_on.optimizer
    source = source.checked(config.text.text_column)
    state = checkpoint.TrainingState(config, source.fingerprint(), model, optimizer)
    keeper = Keeper(checkpoints, state, world)
    done, position = keeper.start()
    stream = Feed(data.Batches(config, source, position), device, world)
    source = source.confirmed(opened=False)
    meter, trail = Meter(device, world), Trail(optimizer.names)
    audits = Audits(config, model, judge, audited, world)
    with keeper:
        for step in range(done + 1, config.train.steps + 1):
            # Timed region: from here to done(), by the device's own clock, data included.
            batch = meter.count(next(stream))
            audits.watch(step)
            update = train_on(batch, step)
            trail.add(step, update.loss, update.norms)
            keep = keeper.due(step)
            meter.done()
            # End of the timed region; after a record restart() opens the next one.
            if keep or step == 1 or step % config.train.log_every == 0 or step == config.train.steps:
                record = meter.record(step, update.loss, update.norm, update.rate)
                source = source.confirmed(opened=True)
                if world.is_first:
                    report(record)
                audits.settle()
                if record.loss is None or record.grad_norm is None:
                    raise Diverged(trail.first())
                if keep:
                    keeper.keep(step, stream.position)
                trail.clear()
                meter.restart()
    return Trained(config, model, train_on, stream)


class Trained:
    """A run that has trained, and can do more steps.

    Args:
        stream: its batches.
    """

    def __init__(
        self, config: RunConfig, model: Llama, train_on: TrainingStep, stream: Iterator[Ready]
    ) -> None:
        self.config, self.model = config, model
        self._train_on, self._stream, self._done = train_on, stream, config.train.steps

    @property
    def phases(self) -> dict[Phase, Work]:
        """Training has one."""
        return {"step": Work(self.step, self.step)}

    def step(self) -> None:
        """Do one more step, with marks where its parts begin and end."""
        self._done += 1
        self._train_on(next(self._stream), self._done, mark)


def build_model(config: RunConfig, backend: attention.Backend, world: World = ALONE) -> Llama:
    """The run's llama on its device in its precision, with weights drawn from the run's seed.

    Every process draws the same values, and then keeps its own piece of each block.
    """
    length, recompute = config.train.sequence_length, config.train.checkpoint_activations
    drops = config.train.attention_dropout > 0

    def finish(block: Block) -> None:
        if config.train.float8 != "none":
            float8.convert(block, config.train.float8)
        if config.train.compile:
            compile_block(block)
        if world.mesh is not None:
            from model.training.parallel import split

            split.block(block, config.train, world)

    if world.parallel.context == 1:
        if config.train.compile:
            backend = attention.for_compile(backend)
        attend = partial(attention.attend, backend, config.attention_case)
        return drawn(config, length, attend, recompute, finish, drops)

    from model.training.parallel import context

    shared = context.Shared(backend, config.attention_case, world, outside_graphs=config.train.compile)
    model = drawn(config, length, shared, recompute, finish, drops)
    model.cos_TD, model.sin_TD = (context.mine(x, world, dim=0) for x in (model.cos_TD, model.sin_TD))
    return model
