"""A launch says how much GPU memory its runs need, and names those that will not fit, with what would."""

from model.config import RunConfig
from model.disk.record import Outcome
from runner.plan.gpu_memory import forecast
from tests.analysis.fabricate import plan

GIB = 2**30


def planned(
    run_id="a", expected=Outcome.COMPLETED, device="cuda", shard=1, replicate=1, reshard=True, **train
):
    parallel = {"shard": shard, "replicate": replicate, "reshard": reshard}
    config = {
        "attention": "cudnn",
        "device": device,
        "data": {"path": "x"},
        "train": train,
        "parallel": parallel,
    }
    run = plan(run_id, config=RunConfig.model_validate(config))
    return run.model_copy(update={"expected_outcome": expected, "group": run_id})


def test_what_fits_is_said_in_one_line():
    runs = [planned(), planned("b", loss="linear_cross_entropy", compile=True)]
    assert [*forecast(runs, 139 * GIB)] == ["GPU memory, estimated: 64.2 GiB to 71.6 GiB per run"]
    assert [*forecast(runs[:1], None)] == ["GPU memory, estimated: 71.6 GiB per run"]
    assert [*forecast([planned(device="cpu")], GIB)] == []


def test_what_does_not_fit_is_named_with_what_would():
    _, line = forecast([planned()], 70 * GIB)
    assert (
        "will probably end as oom_gpu: it needs about 71.6 GiB, but the profile's GPUs have 70.0 GiB" in line
    )
    assert line.endswith("use --set train.loss=linear_cross_entropy")
    _, line = forecast([planned(sequence_length=32768)], 70 * GIB)
    assert line.endswith("use --set train.loss=linear_cross_entropy --set train.checkpoint_activations=true")
    _, line = forecast([planned(batch_size=64)], 100 * GIB)
    assert line.endswith("use --set train.accumulate=64")
    _, line = forecast([planned(sequence_length=2**20)], 100 * GIB)
    assert "use --set train.sequence_length=" in line
    _, line = forecast([planned()], GIB)
    assert line.endswith("use a smaller model, or state `expect: oom_gpu`")


def test_a_group_is_named_without_seed_and_repeat():
    run = planned().model_copy(update={"factors": {"attention": "cudnn", "seed": 2}, "repeat": 3})
    _, line = forecast([run], GIB)
    assert line.startswith("cudnn will probably end")
    _, line = forecast([run.model_copy(update={"factors": {"seed": 2}})], GIB)
    assert line.startswith("each run will probably end")


def test_a_run_that_is_expected_to_fail_so_is_not_named():
    assert len([*forecast([planned(expected=Outcome.OOM_GPU)], GIB)]) == 1


def reading(run_id="a", **inference):
    config = {"attention": "cudnn", "task": "inference", "data": {"path": "x"}, "inference": inference}
    return plan(run_id, config=RunConfig.model_validate(config)).model_copy(update={"group": run_id})


def test_reading_prompts_has_a_forecast_too():
    (line,) = forecast([reading(), reading("b", batch_size=8, prompt_length=16384)], 80 * GIB)
    assert line == "GPU memory, estimated: 16.0 GiB to 44.7 GiB per run"
    _, line = forecast([reading(batch_size=8, prompt_length=16384)], 40 * GIB)
    assert line.endswith("the profile's GPUs have 40.0 GiB; use --set inference.batch_size=4")
    _, line = forecast([reading(prompt_length=2**20)], 40 * GIB)
    assert "use --set inference.prompt_length=" in line


def test_many_are_counted():
    runs = [planned(str(number)) for number in range(9)]
    lines = [*forecast(runs, GIB)]
    assert len(lines) == 5
    assert lines[-1] == "and so will 6 more"


def test_what_each_of_several_gpus_needs_is_counted_where_they_share_the_parameters():
    sizes = {"batch_size": 4, "compile": True, "loss": "linear_cross_entropy"}
    sharded, once = planned("a", **sizes, shard=2), planned("b", **sizes, shard=2, reshard=False)
    assert [*forecast([sharded, once], 80 * GIB)] == ["GPU memory, estimated: 61.8 GiB to 74.8 GiB per GPU"]
    _, line = forecast([sharded, once], 70 * GIB)
    assert line.endswith("use --set parallel.reshard=true")
    _, line = forecast([once], 50 * GIB)
    assert line.endswith("use --set train.checkpoint_activations=true")
    _, line = forecast([planned(batch_size=64, shard=4)], 45 * GIB)
    assert line.endswith("use --set train.accumulate=16")  # of the 16 samples that each has


def test_of_other_processes_it_is_not_guessed():
    shared = [planned(f"s{copies}", replicate=copies, batch_size=8) for copies in (2, 4)]
    unknown = "GPU memory: no estimate for 2 configurations whose runs have several processes"
    assert [*forecast(shared, GIB)] == [unknown]
    assert [*forecast([planned(), *shared], None)] == [unknown, "GPU memory, estimated: 71.6 GiB per run"]
