"""Attempts of one small run, and what they leave: records, weights and a checkpoint."""

from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch

from model.record.errors import Interrupted
from model.record.records import StepRecord
from model.record.text import Source
from model.training import checkpoint, trainer
from model.training.keeper import Checkpoints
from model.training.trainer import build_model, train


@dataclass
class Attempt:
    """What one call of train() did."""

    folder: Path
    records: list[StepRecord] = field(default_factory=list)
    weights: dict = field(default_factory=dict)
    stopped: int | None = None

    @property
    def kept(self):
        """Its records up to its checkpoint."""
        step = checkpoint.inspect(self.folder / "checkpoint")
        return [record for record in self.records if record.step <= step]


class After:
    """Asks to stop after so many steps."""

    def __init__(self, steps):
        self.left = steps

    def __call__(self):
        self.left -= 1
        return self.left == 0


def attempt(config, corpus, folder, stop_after=0, every=None, resume=None, before=lambda: None):
    folder.mkdir(exist_ok=True)
    outcome, models = Attempt(folder), []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            trainer, "build_model", lambda *arguments: models.append(build_model(*arguments)) or models[0]
        )
        try:
            train(
                config,
                Source(corpus),
                outcome.records.append,
                Checkpoints(folder, every, After(stop_after), resume and resume.folder, before),
            )
        except Interrupted as error:
            outcome.stopped = error.step
    outcome.weights = models[0].state_dict()
    return outcome


def files(attempt):
    return sorted(path.name for path in attempt.folder.rglob("*") if path.is_file())


def assert_same(records, outcome, reference):
    """The records tile the reference's steps, and hold the same numbers; the weights are the same."""
    steps = {record.step: record for record in reference.records}
    assert [record.step - record.steps for record in records] == [0, *(entry.step for entry in records[:-1])]
    assert records[-1].step == reference.records[-1].step
    for record in records:
        expected = steps[record.step]
        assert (record.loss, record.grad_norm) == (expected.loss, expected.grad_norm)
        assert record.learning_rate == expected.learning_rate
    for name in ("tokens", "training_tokens"):
        assert sum(getattr(entry, name) for entry in records) == sum(
            getattr(entry, name) for entry in reference.records
        )
    assert all(torch.equal(outcome.weights[name], weight) for name, weight in reference.weights.items())
