"""What a launch costs is said before it is spent, with what that is known from."""

import pytest

from analysis.store import database as store
from analysis.store.collect import collect
from model.record.config import DataConfig, ParallelConfig, RunConfig, TrainConfig
from model.record.outcome import Outcome
from runner.inputs.profile import Profile
from runner.plan import cost
from runner.plan.cost import Basis, History, describe, estimate, history
from tests.analysis.fabricate import Folder, completed, plan


def profile(**keys):
    return Profile.model_validate({"executor": "slurm", "gpus": 1, "slurm": {}} | keys)


def trained(attention="auto", seed=0, **train):
    """A configuration of RunConfig as `plan` takes it."""
    settings = {"steps": 100} | train
    return RunConfig(
        attention=attention, seed=seed, data=DataConfig(path="train.parquet"), train=TrainConfig(**settings)
    )


def lines(result):
    return "\n".join(describe(result))


# What past runs tell


def test_a_run_is_estimated_from_past_runs_that_differ_by_seed_alone(tmp_path):
    for seed, seconds in enumerate((50.0, 60.0, 400.0)):
        completed(tmp_path, f"a{seed}", study="other", seed=seed).end(seconds=seconds)
    collect(tmp_path)
    result = estimate([plan("new", seed=9)], profile(), history(tmp_path))
    assert result.runs[0].wall_seconds == 60, "the median, from any study"
    assert result.counts == {Basis.SAME: 1}
    assert lines(result) == (
        "about 0.017 GPU-hours, 0:01:00 with 1 at once: 1 run from past runs of the same configuration"
    )


def test_another_number_of_steps_costs_the_start_up_and_each_step(tmp_path):
    completed(tmp_path, "a", seconds=0.4).end(seconds=100)  # 100 steps of 0.4 s, so 60 s of start-up
    collect(tmp_path)
    longer = plan("new", config=trained(steps=1000, learning_rate=1e-3, log_every=50))
    result = estimate([longer], profile(), history(tmp_path))
    assert result.runs[0].wall_seconds == pytest.approx(60 + 1000 * 0.4)
    assert "1 run from past runs with a different number of steps" in lines(result)


@pytest.mark.parametrize(
    "different",
    [
        {"config": trained("math")},
        {"config": trained(batch_size=2)},
        {"config": trained(sequence_length=512)},
        {"config": trained(dtype="float32")},
        {"config": trained(compile=True)},
        {"profile": "h100"},
    ],
)
def test_what_is_not_alike_tells_nothing_and_the_limit_is_no_estimate(tmp_path, different):
    completed(tmp_path, "a")
    collect(tmp_path)
    result = estimate([plan("new", **different)], profile(), history(tmp_path))
    assert result.counts == {Basis.LIMIT: 1}
    assert lines(result) == "no estimate yet; limit 1:00:00 per run, at most 1.0 GPU-hours"


def test_without_past_runs_and_without_a_limit_nothing_is_claimed(tmp_path):
    result = estimate([plan("new", time_limit_seconds=None)], profile(), history(tmp_path))
    assert (result.gpu_hours, result.node_hours, result.wall_seconds) == (None, None, None)
    assert lines(result) == "no estimate yet; the profile has no time_limit"


def test_failed_runs_and_crashed_attempts_are_no_past_runs(tmp_path):
    folder = Folder(tmp_path, plan("a"))
    folder.start()
    folder.end("failed", seconds=5)
    collect(tmp_path)
    assert history(tmp_path).runs == ()


def test_a_run_that_is_expected_to_be_unsupported_costs_its_start_up_only_if_history_says_so(tmp_path):
    refused = {"expected_outcome": Outcome.UNSUPPORTED, "attention": "flash3"}
    limited = profile()
    assert estimate([plan("new", **refused)], limited, history(tmp_path)).counts == {Basis.LIMIT: 1}
    folder = Folder(tmp_path, plan("a", **refused))
    folder.start()
    folder.end("unsupported", seconds=7, steps=0)
    collect(tmp_path)
    result = estimate(
        [plan("b", seed=1, **refused), plan("c", steps=9, **refused)], limited, history(tmp_path)
    )
    assert [run.wall_seconds for run in result.runs] == [7, 7], "however many steps were planned"


def test_an_expected_failure_is_no_measure_for_a_run_that_should_complete(tmp_path):
    folder = Folder(tmp_path, plan("a", expected_outcome=Outcome.OOM_GPU))
    folder.start()
    folder.end("oom_gpu", seconds=7)
    collect(tmp_path)
    assert estimate([plan("new", seed=1)], profile(), history(tmp_path)).counts == {Basis.LIMIT: 1}


@pytest.mark.fault
def test_a_database_that_cannot_be_read_is_said_and_the_limit_counts(tmp_path):
    completed(tmp_path, "a")
    store.database(tmp_path).write_bytes(b"not a database at all" * 100)
    result = estimate([plan("new")], profile(), history(tmp_path))
    assert result.counts == {Basis.LIMIT: 1}
    assert "past runs are not used: " in list(describe(result))[1]


def test_a_run_that_other_processes_than_its_own_ended_is_no_past_run(tmp_path):
    config = trained(batch_size=4).model_copy(update={"parallel": ParallelConfig(shard=4)})
    for run_id, parallel in (("a", None), ("b", ParallelConfig(shard=1))):
        folder = Folder(tmp_path, plan(run_id, config=config))
        folder.start(gpus=4)
        folder.end("cancelled", seconds=1)
        folder.start(attempt=2, gpus=1 if parallel else 4, parallel=parallel)
        folder.end(attempt=2, seconds=240 if parallel else 60)
    collect(tmp_path)
    assert [(run.wall_seconds, run.gpus) for run in history(tmp_path).runs] == [(61, 4)]


def test_a_database_of_another_version_is_said(tmp_path):
    completed(tmp_path, "a")
    collect(tmp_path)
    import duckdb

    with duckdb.connect(store.database(tmp_path)) as connection:
        connection.execute("UPDATE database_version SET fingerprint = 'old'")
    assert "another version" in str(history(tmp_path).note)


# What many runs come to


def estimated(*seconds, **keys):
    """The estimate of runs that take so long, by past runs of one configuration each."""
    runs = [plan(f"r{i}", config=trained(steps=i + 1)) for i in range(len(seconds))]
    past = [
        cost.PastRun(run.config, "alps", Outcome.COMPLETED, None, 0.1, wall, 1, 1)
        for run, wall in zip(runs, seconds, strict=True)
    ]
    return estimate(runs, profile(**keys), History(tuple(past)))


def test_each_run_counts_by_the_limit_that_it_has_and_shares_nodes_with_its_like():
    exclusive = profile(slurm={"exclusive": True}, gpus_per_node=2, max_parallel=4)
    runs = [plan(f"r{i}", seed=i, time_limit_seconds=3600 * hours) for i, hours in enumerate((1, 5, 1, 5))]
    result = estimate(runs, exclusive, History())
    assert [run.wall_seconds for run in result.runs] == [3600, 5 * 3600, 3600, 5 * 3600]
    assert result.node_hours == 1 + 5


def test_runs_start_in_order_as_soon_as_a_place_is_free():
    assert estimated(3600, 1800, 1800, 600, max_parallel=2).wall_seconds == 3600 + 600
    assert estimated(3600, 1800, 1800, 600, max_parallel=9).wall_seconds == 3600
    assert estimated(3600, 1800, 1800, 600).wall_seconds == 7800


@pytest.mark.parametrize(
    ("machine", "seconds"),
    [({"gpus_per_node": 4}, 350), ({}, 350), ({"gpus_per_node": 8}, 200), ({"gpus": 0}, 150)],
)
def test_runs_of_several_gpus_wait_on_this_machine_until_as_many_are_free(machine, seconds):
    """Two of one process, 50 s each; then 4, 2 and 4 processes, 100 s each; on a CPU they share its cores."""
    several = [(1, 50), (1, 50), (4, 100), (2, 100), (4, 100)]
    configs = [
        trained(steps=i + 1, batch_size=4).model_copy(update={"parallel": ParallelConfig(shard=count)})
        for i, (count, _) in enumerate(several)
    ]
    runs = [plan(f"r{i}", config=config) for i, config in enumerate(configs)]
    past = [
        cost.PastRun(config, "alps", Outcome.COMPLETED, None, 0.1, wall, 1, count)
        for config, (count, wall) in zip(configs, several, strict=True)
    ]
    local = Profile.model_validate({"executor": "local", "gpus": 1, "max_parallel": 3} | machine)
    assert estimate(runs, local, History(tuple(past))).wall_seconds == seconds


def test_whole_nodes_are_held_until_the_longest_of_the_runs_that_share_one_ends():
    exclusive = {"slurm": {"exclusive": True}, "gpus_per_node": 4, "max_parallel": 4}
    result = estimated(3600, 1800, 1800, 1800, 3600, **exclusive)
    assert (result.gpu_hours, result.node_hours) == (3.5, 2.0)
    assert lines(result).startswith(
        "about 3.5 GPU-hours (2.0 node-hours), 1:30:00 with 4 at once: 5 runs from past"
    )
    assert estimated(3600, 3600, **{**exclusive, "gpus_per_node": 1}).node_hours == 2.0
    assert estimated(3600, 3600).node_hours is None, "nodes are shared with others"


def several(run_id, hours, **parallel):
    """A run of several processes, that may take so many hours."""
    config = RunConfig(
        data=DataConfig(path="train.parquet"), train=TrainConfig(batch_size=8), parallel=parallel
    )
    return plan(run_id, config=config, time_limit_seconds=3600 * hours)


def test_all_gpus_of_a_run_count():
    runs = [several("a", 1), several("b", 2, shard=2), several("c", 3, replicate=4, context=2)]
    result = estimate(runs, profile(gpus_per_node=4), History())
    assert result.gpu_hours == 1 + 2 * 2 + 8 * 3
    assert "at most 29.0 GPU-hours" in lines(result)
    cpus = estimate(runs, profile(gpus=0, processes_per_node=4), History())
    assert cpus.gpu_hours == 0
    assert "GPU" not in lines(cpus)


def test_all_whole_nodes_of_a_run_count_and_runs_of_as_many_processes_share_one():
    """One GPU, then two pairs and a third alone, then two nodes."""
    pairs = [several(f"p{number}", 2, shard=2) for number in range(3)]
    runs = [several("a", 1), *pairs, several("c", 3, replicate=8)]
    exclusive = profile(slurm={"exclusive": True}, gpus_per_node=4, max_parallel=8)
    result = estimate(runs, exclusive, History())
    assert result.node_hours == 1 + 2 + 2 + 2 * 3
    assert result.gpu_hours == 1 + 3 * 2 * 2 + 8 * 3


def test_the_basis_of_each_part_is_counted_and_a_limit_that_is_too_short_is_said():
    runs = [plan(f"r{i}", seed=i) for i in range(8)] + [
        plan(f"m{i}", attention="math", seed=i) for i in (0, 1)
    ]
    past = cost.PastRun(runs[0].config, "alps", Outcome.COMPLETED, None, 0.1, 5400.0, 100, 1)
    result = estimate(runs, profile(max_parallel=4), History((past,)))
    assert list(describe(result)) == [
        "about 12.0 GPU-hours, 3:00:00 with 4 at once: 8 runs from past runs of the same configuration",
        "no estimate yet for 2 of the 10 runs; limit 1:00:00 per run, at most 2.0 GPU-hours",
        "8 of them will exceed the time limit of 1:00:00",
    ]
    assert lines(estimate(runs, profile(gpus=0), History())) == "no estimate yet; limit 1:00:00 per run"
    assert list(describe(estimate([], profile(), History()))) == ["nothing to start"]


def test_runs_that_differ_by_seed_alone_are_looked_up_once(monkeypatch):
    runs = [plan(f"r{i}", seed=i, steps=1 + i % 50) for i in range(2000)] * 5
    past = tuple(
        cost.PastRun(run.config, "alps", Outcome.COMPLETED, None, 0.1, 5.0, 10, 1) for run in runs[:1000]
    )
    looked_up, match = [], cost.PastRunIndex.match
    monkeypatch.setattr(
        cost.PastRunIndex, "match", lambda *arguments: looked_up.append(arguments) or match(*arguments)
    )
    assert estimate(runs, profile(), History(past)).gpu_hours
    assert len(looked_up) == 50, "10,000 runs of 50 lengths"
