"""A launch names the runs that will not fit into memory, with what would."""

import subprocess
from pathlib import Path

import pytest

from model.measure import hostmemory
from model.measure.memory import needed
from model.record.config import RunConfig
from model.record.outcome import Outcome
from runner.inputs.document import InvalidFile
from runner.inputs.expansion import expand
from runner.inputs.profile import Profile, read_cluster
from runner.inputs.study import read_study
from runner.plan import fit
from runner.plan.fit import refuse_versions
from runner.state import gpus
from tests.analysis.fabricate import plan

GIB = 2**30


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def forecast(runs, gpu_memory, executor="slurm"):
    """Of runs under a profile with GPUs of so many bytes; None: it does not say."""
    memory = f"gpu_memory: {gpu_memory // GIB}GiB\n" if gpu_memory else ""
    slurm = "slurm: {}\n" if executor == "slurm" else ""
    Path("mine.yaml").write_text(f"executor: {executor}\ngpus: 1\ngpus_per_node: 4\n{memory}{slurm}")
    return fit.memory_forecast(read_cluster("mine.yaml"), runs)


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


@pytest.mark.parametrize(
    ("losses", "advice"),
    [
        (("cross_entropy", "linear_cross_entropy"), "use --only train.loss=linear_cross_entropy"),
        (("cross_entropy", "cross_entropy"), "use train.loss=linear_cross_entropy in the study"),
    ],
)
def test_no_set_of_a_factor_is_advised(losses, advice):
    runs = [
        planned(name, loss=loss).model_copy(update={"factors": {"train.loss": loss}})
        for name, loss in zip("ab", losses, strict=True)
    ]
    _, line, *_ = forecast(runs, 70 * GIB)
    assert line.endswith(f"the profile's GPUs have 70.0 GiB; {advice}")


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


def test_replicas_that_do_not_fit_may_share_the_parameters():
    (_, line) = forecast([planned(batch_size=4, replicate=4)], 80 * GIB)
    assert line.endswith("use --set parallel.replicate=1 --set parallel.shard=4")
    assert [*forecast([planned(batch_size=4, replicate=4)], None)] == [
        "GPU memory, estimated: 86.6 GiB per GPU"
    ]


def nvidia_smi(monkeypatch, stdout):
    """As if this machine's nvidia-smi said so; None: there is none."""

    def run(command, **_how):
        if stdout is None:
            raise FileNotFoundError(command[0])
        return subprocess.CompletedProcess(command, 0, stdout)

    monkeypatch.setattr(gpus.subprocess, "run", run)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


TWO_H100S = "0, GPU-1f, 81559\n1, GPU-2e, 81559\n"


def test_runs_on_this_machine_are_compared_with_the_gpus_that_are_here(monkeypatch):
    nvidia_smi(monkeypatch, TWO_H100S)
    large = planned(batch_size=2)
    _, line = forecast([large], None, "local")
    assert "this machine's GPUs have 79.6 GiB" in line
    assert [*forecast([planned(batch_size=1)], None, "local")] == ["GPU memory, estimated: 71.6 GiB per run"]
    assert len([*forecast([large], None, "slurm")]) == 1  # jobs run elsewhere
    _, line = forecast([large], 70 * GIB, "local")
    assert "the profile's GPUs have 70.0 GiB" in line  # the smaller counts
    _, line = forecast([large], 139 * GIB, "local")
    assert "this machine's GPUs have 79.6 GiB" in line


@pytest.mark.parametrize(
    "stdout", [None, "", "No devices were found\n", "0, GPU-1f, [N/A]\n1, GPU-2e, 81559\n"]
)
def test_where_nvidia_smi_does_not_tell_a_launch_says_that_nothing_was_compared(stdout, monkeypatch):
    nvidia_smi(monkeypatch, stdout)
    _, line = forecast([planned()], None, "local")
    assert line.startswith("it is compared with no GPU") and "`gpu_memory`" in line
    assert len([*forecast([planned()], 139 * GIB, "local")]) == 1


ABSURD = {"dim": 16_000_000, "heads": 8, "kv_heads": 8, "ffn_dim": 1024, "vocab_size": 512, "layers": 1}


def absurd(device="cpu", expected=Outcome.COMPLETED):
    run = planned(device=device)
    model = type(run.config.model).model_validate(ABSURD)
    config = run.config.model_copy(update={"model": model})
    return run.model_copy(update={"config": config, "expected_outcome": expected})


def test_what_exceeds_the_hosts_memory_is_named_with_the_parameters_that_do(monkeypatch):
    monkeypatch.setattr(hostmemory, "left", lambda: 23 * GIB)
    (line,) = forecast([absurd()], None, "local")
    assert (
        "will probably end as oom_host: it needs about " in line
        and "but this machine still has 23.0 GiB" in line
    )
    assert "1,024,065,584,000,000 parameters" in line
    assert [*forecast([absurd(expected=Outcome.OOM_HOST)], None, "local")] == []
    assert len([*forecast([absurd(expected=Outcome.OOM_GPU)], None, "local")]) == 1
    limited = absurd().model_copy(update={"memory_bytes": 3 * GIB})
    for executor in ("local", "slurm"):
        (line,) = forecast([limited], None, executor)
        assert "but the profile gives it 3.0 GiB" in line
    assert [*forecast([absurd()], None, "slurm")] == []  # whatever its nodes have


def test_processes_on_one_machine_share_its_memory(monkeypatch):
    monkeypatch.setattr(hostmemory, "left", lambda: 150 * GIB)
    sizes = {"device": "cpu", "batch_size": 2, "dtype": "float32"}
    (line,) = forecast([planned(replicate=2, **sizes)], None, "local")
    assert "this machine, shared by 2 processes, still has for each 75.0 GiB" in line
    assert "linear_cross_entropy" not in line  # which a CPU has not


def test_what_no_gpu_can_hold_is_named_where_the_gpu_is_unknown():
    _, line = forecast([absurd("cuda")], None)
    assert "will probably end as oom_gpu" in line and "the largest GPUs have 268.2 GiB" in line


SMALL = {"dim": 64, "layers": 2, "heads": 4, "kv_heads": 2, "ffn_dim": 128, "vocab_size": 512}


def test_on_a_cpu_python_and_torch_count_and_what_the_backward_of_math_makes():
    """Measured: 218 MiB resident after `import torch`, and a peak of 1,474 MiB with 4,096 tokens under math.

    A small run and the process that checks its backend had 403 MiB in use together.
    """
    config = RunConfig.model_validate(
        {
            "device": "cpu", "attention": "math", "model": SMALL, "data": {"path": "text"},
            "train": {"steps": 2, "sequence_length": 4096, "batch_size": 1, "dtype": "float32"},
        }
    )  # fmt: skip
    assert 0.8 < needed(config) / (1474 * 2**20) < 1.1
    short = config.train.model_copy(update={"sequence_length": 64})
    assert 1 <= needed(config.model_copy(update={"train": short})) / (403 * 2**20) < 1.1


ON_A_GPU = "title: t\nbase:\n  data: {path: a.parquet}\n"
ONE_PASS = "matrix: {train.optimizer: [adamw, adamw_one_pass]}\n"
NO_TRITON = "rules: [{where: {train.optimizer: adamw_one_pass}, expect: unsupported, because: no triton}]\n"


def refused(study, monkeypatch, extra, **profile):
    monkeypatch.setattr("model.record.versions.version", {"torch": "2.9.1", "triton": "3.5.1"}.get)
    cells = expand(read_study(study(extra, base=ON_A_GPU)), "full")
    refuse_versions(cells, Profile.model_validate({"executor": "local", **profile}))


def test_a_setting_that_this_triton_is_too_old_for_is_an_error_at_its_line(study, monkeypatch):
    with pytest.raises(InvalidFile, match=r"tiny.yaml:4:35: train.optimizer=adamw_one_pass needs triton 3.6"):
        refused(study, monkeypatch, ONE_PASS)


def test_versions_are_no_error_where_the_runs_use_another_python_or_are_to_be_refused(study, monkeypatch):
    refused(study, monkeypatch, ONE_PASS + NO_TRITON)
    refused(study, monkeypatch, ONE_PASS, python="/opt/python")
    refused(study, monkeypatch, ONE_PASS, executor="slurm", slurm={})
