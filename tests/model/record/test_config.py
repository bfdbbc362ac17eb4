"""A run's configuration refuses values that do not go together, wherever they come from."""

import json

import pytest
from pydantic import ValidationError

from model.record.config import AXES, Mismatch, ParallelConfig, RunConfig

RUN = {
    "data": {"path": "x.parquet"},
    "model": {"dim": 64, "heads": 4, "kv_heads": 2, "ffn_dim": 96},
    "train": {"batch_size": 8, "sequence_length": 32, "accumulate": 2},
}


@pytest.mark.parametrize(
    ("parallel", "processes"),
    [
        ({"shard": 4}, 4),
        ({"replicate": 2, "shard": 2}, 4),
        ({"context": 16}, 16),
        ({"tensor": 2, "context": 2, "replicate": 2}, 8),
    ],
)
def test_what_processes_can_share_evenly_is_read_from_a_record(parallel, processes):
    assert RunConfig.model_validate_json(json.dumps({**RUN, "parallel": parallel})).processes == processes


@pytest.mark.refused
@pytest.mark.parametrize(
    ("parallel", "settings"),
    [
        ({"shard": 8}, ("train.batch_size", "parallel.shard", "train.accumulate")),
        ({"replicate": 3}, ("train.batch_size", "parallel.replicate", "train.accumulate")),
        ({"context": 32}, ("train.sequence_length", "parallel.context")),
        ({"tensor": 4}, ("model.kv_heads", "parallel.tensor")),
        ({"replicate": 2, "reshard": False}, ("reshard", "shard")),
    ],
)
def test_a_record_written_by_hand_whose_processes_cannot_share_evenly_is_refused(parallel, settings):
    with pytest.raises(ValidationError) as refusal:
        RunConfig.model_validate_json(json.dumps({**RUN, "parallel": parallel}))
    (detail,) = refusal.value.errors()
    assert isinstance(error := detail["ctx"]["error"], Mismatch)
    assert error.settings == settings


def test_a_record_has_no_key_that_came_later_unless_its_run_uses_it():
    default_config = RunConfig.model_validate({**RUN, "parallel": {"shard": 2}})
    gathered_config = RunConfig.model_validate({**RUN, "parallel": {"shard": 2, "reshard": False}})
    assert [*default_config.identity()["parallel"]] == [*AXES]
    assert gathered_config.identity()["parallel"] == {
        **default_config.identity()["parallel"],
        "reshard": False,
    }
    assert RunConfig.model_validate_json(gathered_config.model_dump_json()) == gathered_config


def test_what_is_gathered_once_may_be_whole_on_fewer_processes():
    parallel = ParallelConfig(shard=2, reshard=False)
    assert parallel.on({"shard": 4}) == ParallelConfig(shard=4, reshard=False)
    assert parallel.on({"shard": 1}) == ParallelConfig()
    assert parallel.on({"shard": 1, "context": 2}) == ParallelConfig(context=2, reshard=False)


def test_only_training_is_shared():
    assert RunConfig.model_validate({**RUN, "task": "inference", "parallel": {"shard": 3}}).processes == 1
