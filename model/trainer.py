"""The training loop: one run, from its configuration to its last step."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from model import attention, data, float8, optim
from model.audit import Audits, Judge
from model.config import RunConfig
from model.disk import checkpoint
from model.disk.record import StepRecord
from model.errors import Diverged, Unsupported
from model.feed import Feed
from model.keeper import Checkpoints, Keeper
from model.llama import Llama, drawn
from model.loss import LOSSES
from model.measure.meter import Meter, no_collector
from model.measure.profile import Trained
from model.measure.trail import Trail
from model.text import Source

Report = Callable[[StepRecord], None]


@no_collector()
def train(
    config: RunConfig,
    source: Source,
    report: Report,
    checkpoints: Checkpoints | None = None,
    judge: Judge | None = None,
) -> Trained:
    """Train one run to its last step.

    Args:
        report: called with a StepRecord after step 1, every `log_every` steps, at the last step, and before
            each checkpoint, so that the records up to a checkpoint cover exactly the steps that it holds.
        judge: called between a record and its checkpoint with what audits took since the record before, and
            raises AuditFailed; None: without audits.

    Returns:
        What can do more steps, for a profile.

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
    model = build_model(config, backend)
    loss_of = LOSSES[config.train.loss]
    optimizer = optim.OPTIMIZERS[config.train.optimizer](model.named_parameters(), config.train.weight_decay)
    source = source.checked(config.text.text_column)
    state = checkpoint.State(config, source.fingerprint(), model, optimizer)
    keeper = Keeper(checkpoints, state)
    done, position = keeper.start()
    stream = Feed(data.Batches(config, source, position), device)
    source = source.confirmed(opened=False)
    meter, trail, audits = Meter(device), Trail(optimizer.names), Audits(config, model, judge)
    for step in range(done + 1, config.train.steps + 1):
        # Timed region: from here to done(), by the device's own clock, data included.
        batch = meter.count(next(stream))
        rate = optim.learning_rate(config.train, step)
        audits.watch(step)
        loss = torch.zeros((), device=device)
        for inputs_BT, labels_BT in batch.parts(config.train.accumulate):
            share = loss_of(model, inputs_BT, labels_BT, batch.training_tokens)
            share.backward()  # type: ignore[no-untyped-call]  # torch leaves it unannotated
            loss += share.detach()
        norms, norm = optimizer.clipped_step(rate, config.train.clip_norm)
        trail.add(step, loss, norms)
        keep = keeper.due(step)
        meter.done()
        # End of the timed region; after a record restart() opens the next one.
        if keep or step == 1 or step % config.train.log_every == 0 or step == config.train.steps:
            record = meter.record(step, loss, norm, rate)
            source = source.confirmed(opened=True)
            report(record)
            audits.settle()
            if record.loss is None or record.grad_norm is None:
                raise Diverged(trail.first())
            if keep:
                keeper.keep(step, stream.position)
            trail.clear()
            meter.restart()
    return Trained(config, model, loss_of, optimizer, stream)


def build_model(config: RunConfig, backend: attention.Backend) -> Llama:
    """The run's llama on its device in its precision, with weights drawn from the run's seed."""
    if config.train.compile:
        backend = attention.for_compile(backend)
    attend = partial(attention.attend, backend, config.attention_case)
    model = drawn(config, config.train.sequence_length, attend, config.train.checkpoint_activations)
    if config.train.float8 != "none":
        float8.convert(model.blocks, config.train.float8)
    if config.train.compile:
        model.compile_blocks()
    return model
