"""Training with dropout: what a seed draws does not depend on interruptions or on recomputed blocks."""

import pytest
import torch

from tests.model.attempts import assert_same, attempt
from tests.model.conftest import run_config


@pytest.mark.parametrize("name", ["math", "tiled"])
def test_a_run_that_was_stopped_goes_on_bit_for_bit(name, tiny, tmp_path):
    config = run_config(name, attention_dropout=0.25)
    reference = attempt(run_config(name, attention_dropout=0.25, log_every=1), tiny, tmp_path / "whole")
    first = attempt(config, tiny, tmp_path / "attempt-1", stop_after=13)
    second = attempt(config, tiny, tmp_path / "attempt-2", resume=first)
    assert_same(first.records + second.records, second, reference)


def test_a_recomputed_block_drops_the_same_weights(tiny, tmp_path):
    plain = attempt(run_config("tiled", attention_dropout=0.5), tiny, tmp_path / "kept")
    recomputed = attempt(
        run_config("tiled", attention_dropout=0.5, checkpoint_activations=True), tiny, tmp_path / "again"
    )
    for name, weight in plain.weights.items():
        torch.testing.assert_close(recomputed.weights[name], weight)


def test_dropout_changes_the_losses_and_a_seed_gives_the_same_ones(tiny, tmp_path):
    def losses(number, **train):
        outcome = attempt(run_config("math", **train), tiny, tmp_path / f"attempt-{number}")
        return [record.loss for record in outcome.records]

    first, repeated, none = losses(1, attention_dropout=0.5), losses(2, attention_dropout=0.5), losses(3)
    assert first == repeated and first != none


def test_a_run_without_dropout_is_written_as_before():
    """So that its id stays the same."""
    assert "attention_dropout" not in run_config("math").train.model_dump()
    assert run_config("math", attention_dropout=0.25).train.model_dump()["attention_dropout"] == 0.25
