"""Which steps, layers, samples and heads of a run are audited, and how many."""

import pytest

from model.measure.flops import flop_per_token
from model.record.config import ModelConfig
from model.training import audit
from model.training.audit import audit_of, every
from tests.model.conftest import run_config


def test_each_stretch_of_steps_has_one_audit_and_a_short_run_has_one(monkeypatch):
    monkeypatch.setattr(audit, "every", lambda config: 10)
    config = run_config(steps=34)
    steps = [step for step in range(1, 35) if audit_of(config, step)[0].step == step]
    assert [(step - 1) // 10 for step in steps] == [0, 1, 2, 3]
    assert all(audit_of(run_config(steps=1, seed=seed), 1)[0].step == 1 for seed in range(9))


def test_the_seed_alone_decides_which_steps_layers_samples_and_heads_are_audited():
    def places(*name, **config):
        return [audit_of(run_config(*name, steps=10**6, **config), step)[0] for step in range(1, 20001, 100)]

    first = places()
    assert places("tiled") == first
    assert places(seed=1) != first
    for name, values in {"layer": 2, "sample": 4, "kv_head": 2}.items():
        assert {getattr(place, name) for place in first} == set(range(values))
    assert len({place.step % 100 for place in first}) > 50


@pytest.mark.parametrize(("length", "batch"), [(1024, 1), (4096, 1), (4096, 8), (32768, 1), (131072, 1)])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_audits_are_so_rare_that_their_share_of_a_run_stays_small(device, length, batch):
    config = run_config(sequence_length=length, batch_size=batch).model_copy(
        update={"device": device, "model": ModelConfig()}
    )
    model, train = config.model, config.train
    scores = model.heads // model.kv_heads * length * length / 2
    cost = audit.WEIGHT[device] * audit.PRODUCTS * 2 * scores * model.head_dim
    step = flop_per_token(model, length) * train.tokens / train.steps
    assert cost <= audit.SHARE * step * every(config)
    assert every(config) >= audit.LEAST
