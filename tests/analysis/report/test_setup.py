"""The setup table says what the runs have, where they differ, and what overrode the study."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from analysis.report.backends import Backends, BackendVerdict, Without, backend_lines
from analysis.report.facts import environment
from analysis.report.setup import launched, setup
from analysis.report.topics import options
from model.attention import load
from model.record.backends import described, names
from tests.analysis.report.study import NOBODY, TRAIN, Row, comparison, facts, planned
from tests.analysis.verdicts.rows import DESIGN, START


def table(runs: list[Row]) -> dict[str, str]:
    return {line.topic: line.value for line in setup(facts(runs), comparison(runs))}


def changes(runs: list[Row]) -> dict[str, str]:
    return {line.topic: line.changed for line in setup(facts(runs), comparison(runs)) if line.changed}


def test_what_a_launch_gave_that_its_study_does_not_say_is_told_beside_what_the_study_says() -> None:
    """A scale is described for 60 steps under all backends; a launch asks for 30 under two."""
    launch = ["runner", "launch", "study.yaml", "--scale", "short"]
    only, steps = ["--only", "attention=custom,flash"], ["--set", "train.steps=30"]
    overrides = launched(
        [planned("custom", command=[*launch, *steps, *only]), planned("flash", command=[*launch, *only])]
    )
    assert overrides == [
        "--only attention=custom,flash --set train.steps=30",
        "--only attention=custom,flash",
    ]
    assert launched([planned("custom", command=launch)]) == []


def test_margins_that_nobody_stated_are_not_called_unknown() -> None:
    no_margins = {"design": DESIGN | {"margins": {}}}
    assert table([planned("cudnn", **no_margins)])["Margins"] == "none was stated before the runs"
    assert table([planned("a", **no_margins), planned("b", **no_margins | {"design": DESIGN})])[
        "Margins"
    ] == ("none was stated before the runs (`a`); loss 0.005 nats per token (`b`)")


def test_what_labels_stand_for_is_said_where_the_study_gives_them() -> None:
    fast = {"given_label": "fast", "factors": {"train.compile": True, "seed": 0}}
    slow = {"given_label": None, "factors": {"train.compile": False, "seed": 0}}
    assert (
        table([planned("fast", **fast), planned("slow", **slow)])["Labels"] == "`fast`: `train.compile` true"
    )
    assert "Labels" not in table([planned("slow", **slow)])


def test_the_workload_is_all_there() -> None:
    values = table([planned("cudnn"), planned("flash", seed=1)])
    assert values == values | {
        "Parameters": "1,377,600, of which 1,279,296 are not the input embedding",
        "Layers": "3",
        "Dimension": "192",
        "Attention heads": "6 query heads and 2 key/value heads, each of dimension 32",
        "Sequence length": "4,096",
        "Batch": "1",
        "Tokens per step": "4,096",
        "Precision": "bfloat16",
        "Steps": "100 of 100 planned",
        "Learning rate": "0.002",
        "Learning-rate warm-up": "linear over the first 20 of 100 steps, then constant",
        "`torch.compile`": "no",
        "Loss": "cross-entropy of the logits in float32",
        "Optimizer": "AdamW, weight decay 0.01, gradients clipped to norm 1",
        "Text": "`text.parquet`",
        "Fingerprint": f"`{'f' * 16}`",
        "Tokenizer": "bytes: one token per byte",
        "Padding": "50.0 % of the tokens, which tokens per second include",
        "Seeds": "0 and 1",
        "Repeats": "1 run of each group and seed",
        "Baseline": "`attention` cudnn",
        "Margins": "loss 0.005 nats per token",
        "Device": "NVIDIA H200",
        "Clocks and power": "power limit 700 W, GPU clock 1,980 MHz, memory clock 3,201 MHz",
        "Clock throttling": "by the power limit for 50 % of the wall time, start-up included, by heat or the power supply at no time",
        "Packages": "torch 2.13.0",
        "Driver": "unknown: not recorded",
        "Commit": "aaaaaaaaaa",
    }


def test_all_steps_inside_the_learning_rate_warm_up_are_said_to_be() -> None:
    values = table([planned("cudnn", train={"steps": 15})])
    assert values["Learning-rate warm-up"] == "linear over 20 steps: all 15 steps lie inside it"
    assert table([planned("a", train={"warmup_steps": 0})])["Learning-rate warm-up"].startswith("none")


def test_packages_are_those_of_completed_runs_as_far_as_any_completed() -> None:
    completed = planned("a", software={"torch": "2.13.0"})
    stopped = planned("b", software={"torch": "2.12.0", "flash-attn-4": "4.0"}, outcome="cancelled")
    assert table([completed, stopped])["Packages"] == "torch 2.13.0"
    assert environment([completed, stopped])["Software"] == ["torch 2.13.0"]
    assert table([stopped])["Packages"] == "torch 2.12.0, flash-attn-4 4.0"


def test_values_that_differ_stand_beside_their_groups() -> None:
    runs = [planned("cudnn"), planned("flash"), planned("math", outcome="oom_gpu", steps=0)]
    assert table(runs)["Steps"] == "100 of 100 planned (`cudnn` and `flash`); 0 of 100 planned (`math`)"
    many = [planned(f"g{n}", train={"sequence_length": 512 if n else 1024}) for n in range(9)]
    assert table(many)["Sequence length"] == "1,024 (`g0`); 512 (`g1`, `g2`, `g3` and 5 more groups)"
    halves = [
        planned("a", seed=seed, device=device) for seed, device in enumerate(("NVIDIA H200", "Tesla T4"))
    ]
    assert table(halves)["Device"] == "NVIDIA H200 (1 run); Tesla T4 (1 run)"
    sixty = [planned(f"g{n}", train={"learning_rate": n / 1000}) for n in range(1, 61)]
    assert table(sixty)["Learning rate"].endswith(
        "0.008 (`g8`); 52 more values; `data/runs.csv` has all of them"
    )


def test_blocks_that_wait_for_another_launch_are_planned_runs_and_not_added_ones() -> None:
    """A run of block 2 that is on a second machine, or fails, is in a block that has not ended, or has."""
    blocks = [planned("a", block=block, repeat=block) for block in (1, 2, 3)]
    waiting = [run | {"outcome": None, "ended_at": None} for run in blocks]
    rule = "none: the number of runs was fixed in advance"
    assert table(blocks)["Stopping rule"] == rule
    assert (
        table([blocks[0], *waiting[1:]])["Stopping rule"] == f"{rule}; blocks that have ended so far: 1 of 3"
    )
    unblocked = [run | {"block": None} for run in (blocks[0], waiting[1])]
    assert table(unblocked)["Stopping rule"] == rule
    late_run = waiting[2] | {"created_at": blocks[0]["ended_at"] + timedelta(hours=1)}
    assert table([*blocks[:2], late_run])["Stopping rule"] == (
        "none, and the number of runs was not fixed in advance: 1 run added after the first result; "
        "blocks that have ended so far: 2 of 3"
    )


def test_a_study_of_hundreds_of_groups_names_the_first_few() -> None:
    overrides = [{"train.steps": {"own": n, "by": "`--set`"}} for n in range(300)]
    runs = [
        planned(f"group-{n}", repeat=repeat, overridden=overrides[n])
        for n in range(300)
        for repeat in range(1 + n % 2)
    ]
    values = table(runs)
    assert values["Repeats"] == (
        "runs of each group and seed: 1 (`group-0`, `group-2`, `group-4` and 147 more groups); "
        "2 (`group-1`, `group-3`, `group-5` and 147 more groups)"
    )
    assert changes(runs)["Steps"].endswith(
        "the study says 7; 292 more changes; `data/runs.csv` has all of them"
    )
    assert max(map(len, (*values.values(), *changes(runs).values()))) < 400


def test_of_amd_gpus_clocks_and_power_are_said_to_be_not_measured() -> None:
    fields = ("power_limit_watts", "sm_mhz", "memory_mhz", "power_capped_seconds", "slowed_seconds")
    unmeasured = dict.fromkeys(fields)
    for device, reason in (
        ("AMD Instinct MI250X", "not measured on AMD GPUs"),
        ("NVIDIA H200", "not recorded"),
    ):
        values = table([planned("flash", device=device, **unmeasured)])
        assert values["Clocks and power"] == values["Clock throttling"] == f"unknown: {reason}"


def test_what_is_unknown_is_said_to_be() -> None:
    values = table([planned("cudnn", power_limit_watts=None, sm_mhz=None, memory_mhz=None), planned("flash")])
    assert values["Clocks and power"].endswith("(`flash`); unknown (`cudnn`)")
    imported = {"findings": [], "sources": {}}
    values = table([planned("log", imported=imported, config={}, git_sha=None, design=None, tokenizer=None)])
    assert values["Layers"] == values["Learning rate"] == "unknown: the logs do not say"
    assert values["Commit"] == "unknown: the runs were imported"
    unstarted = table([planned("waits", outcome=None, device=None, started_at=None, ended_at=None)])
    assert unstarted["Device"] == "unknown: no run has started"


def test_what_scale_and_options_changed_is_set_off_with_the_studys_own_value() -> None:
    by_scale = {"model.layers": {"own": 32, "by": "scale laptop"}}
    by_option = {
        "train.steps": {"own": 1000, "by": "`--set`"},
        "train.compile": {"own": None, "by": "`--set`"},
    }
    command = ["runner", "launch", "x.yaml", "--set", "train.steps=50", "--only=attention=cudnn,flash"]
    changed = changes([planned("cudnn", overridden=by_scale | by_option, command=command)])
    assert changed == {
        "Layers": "scale laptop; the study says 32",
        "Steps": "`--set`; the study says 1,000",
        "`torch.compile`": "`--set`; the study leaves it at its default",
        "Varied": "`--only attention=cudnn,flash`",
    }


def test_records_without_the_studys_own_values_still_show_what_was_set() -> None:
    command = ["runner", "launch", "x.yaml", "--set", "train.steps=50", "--set=train.dtype=float32"]
    changed = changes([planned("cudnn", overridden=None, command=command)])
    assert changed == {
        "Steps": "`--set train.steps=50`; these records do not include the study's own value",
        "Precision": "`--set train.dtype=float32`; these records do not include the study's own value",
    }


@pytest.mark.parametrize(("minutes", "expected"), [
    ((0, 10), "no: one run at a time on each machine"),
    ((0, 5), "up to 2 at a time on one machine"),
])  # fmt: skip
def test_whether_runs_ran_side_by_side_is_said(minutes: tuple[int, int], expected: str) -> None:
    runs = [
        planned(
            f"g{n}",
            started_at=START + timedelta(minutes=minute),
            ended_at=START + timedelta(minutes=minute + 10),
        )
        for n, minute in enumerate(minutes)
    ]
    assert table(runs)["Runs side by side"] == expected


def test_a_run_that_waits_to_be_resumed_is_on_no_machine() -> None:
    hours = [[(0, 1), (4, 5)], [(1, 3), (3, 4)]]  # the first waits while the second runs
    runs = [
        planned(
            f"g{n}",
            history=[
                {
                    "node": "n1",
                    "started_at": START + timedelta(hours=begin),
                    "ended_at": START + timedelta(hours=end),
                }
                for begin, end in attempts
            ],
        )
        for n, attempts in enumerate(hours)
    ]
    assert table(runs)["Runs side by side"] == "no: one run at a time on each machine"


def certificate(attention: str, **changes: object) -> Row:
    return {
        "attention": attention,
        "key": f"key of {attention}",
        "verdict": "right",
        "device_name": "NVIDIA H200",
        "dtype": None,
        "software": {
            "torch": "2.13.0",
            "nvidia-cudnn-cu13": "9.19",
            "flash_attn_3": "3.0.0",
            "triton": "3.6",
        },
        "kernels": {
            "forward": ["void cutlass::device_kernel<flash::Fwd<1>>(int)", "void at::native::fill<2>(int)"],
            "backward": [],
        },
    } | changes


def test_a_backend_is_told_with_its_package_its_verdict_and_its_kernels() -> None:
    software = {"torch": "2.13.0", "triton": "3.6"}
    runs = [planned(backend, software=software) for backend in ("flash3", "cudnn", "custom", "mine", "late")]
    other_software = {"software": software | {"nvidia-cudnn-cu13": "9.19"}}
    trust = Backends(
        [
            certificate("flash3"),
            certificate("cudnn", **other_software),
            certificate("custom", **other_software),
            certificate("mine"),
        ],
        [Without("late", False, None, None, ("r1", "r2"))],
        [],
    )
    flash3, cudnn, custom, mine, late = backend_lines(runs, trust)
    assert flash3.summary == "FlashAttention-3 for Hopper, the authors' package"
    assert flash3.packages == "flash_attn_3 3.0.0"
    assert cudnn.packages == "torch 2.13.0, nvidia-cudnn-cu13 9.19"
    assert custom.packages == "triton 3.6"
    assert (mine.summary, mine.packages) == (None, "torch 2.13.0, flash_attn_3 3.0.0")
    assert flash3.kernels["forward"].own == ("cutlass::device_kernel<flash::Fwd>",)
    assert (flash3.kernels["forward"].others, list(flash3.kernels)) == (1, ["forward"])
    assert (flash3.verdicts[0].verdict, flash3.verdicts[0].key) == ("right", "key of flash3")
    assert (late.verdicts, late.without) == ((), 2)


def test_runs_of_a_backend_are_those_that_completed() -> None:
    runs = [planned("cudnn"), planned("cudnn", repeat=2, outcome="failed"), planned("flash3")]
    trust = Backends([certificate("cudnn"), certificate("flash3")], [], [])
    assert [line.counted for line in backend_lines(runs, trust)] == ["1 of 2", "1"]


def test_a_run_of_attention_alone_counts_for_the_backends_that_it_timed() -> None:
    runs = [planned(shape, attention=None) for shape in ("a", "b")]
    runs += [planned("c", attention=None, outcome="cancelled")]
    kernels = [
        {"attention": name, "run_id": run["run_id"], "outcome": outcome}
        for run in runs
        for name, outcome in (("cudnn", "completed"), ("math", "oom_gpu" if run is runs[0] else "completed"))
    ]
    trust = Backends([certificate("cudnn"), certificate("math")], [], [])
    assert [line.counted for line in backend_lines(runs, trust, kernels)] == ["2 of 3", "1 of 3"]


def test_certificates_that_say_the_same_are_counted_and_not_listed() -> None:
    certificates = [certificate("flash3", key=f"k{n}") for n in range(4)]
    certificates += [
        certificate("flash3", key="bad", verdict="wrong"),
        certificate("flash3", key="cpu", device_name=None),
    ]
    (uniform,) = backend_lines([planned("flash3")], Backends(certificates[:4], [], []))
    assert uniform.verdicts == (BackendVerdict("right", "k0", 4, None),)
    (mixed,) = backend_lines([planned("flash3")], Backends(certificates, [], []))
    assert mixed.verdicts == (
        BackendVerdict("right", "k0", 4, "NVIDIA H200"),
        BackendVerdict("wrong", "bad", 1, "NVIDIA H200"),
        BackendVerdict("right", "cpu", 1, "no device"),
    )


@pytest.mark.parametrize(
    ("verdicts", "counts"),
    [
        (["right", "right"], ["2 right"]),
        (
            ["right/wrong", "right/wrong", "right/right"],
            ["1 right", "2 right in bfloat16 and wrong in float8_e4m3fn"],
        ),
        (["wrong/wrong", "wrong/right"], ["1 right in float8_e4m3fn and wrong in bfloat16", "1 wrong"]),
        (["right", "unsupported"], ["1 right", "1 unsupported"]),
    ],
)
def test_each_backend_counts_once_though_it_has_several_certificates(
    verdicts: list[str], counts: list[str]
) -> None:
    """Three backends of which two are wrong in 8 bits were `3 right, 2 wrong`."""
    rows = [
        certificate(f"backend{n}", verdict=verdict, dtype=dtype)
        for n, pair in enumerate(verdicts)
        for verdict, dtype in zip(pair.split("/"), ("bfloat16", "float8_e4m3fn"), strict=False)
    ]
    assert Backends(rows, [], []).counts == counts


def test_certificates_of_one_precision_that_disagree_are_said_to() -> None:
    rows = [certificate("flash3", verdict=verdict, dtype="bfloat16") for verdict in ("wrong", "right")]
    assert Backends(rows, [], []).counts == ["1 right by some certificates and wrong by some certificates"]


def test_a_verdict_that_depends_on_the_precision_says_of_which_it_is() -> None:
    rows = [
        certificate("flash3", key="a", dtype="bfloat16"),
        certificate("flash3", key="b", verdict="wrong", dtype="float8_e4m3fn"),
        certificate("custom", key="c", dtype="bfloat16"),
        certificate("custom", key="d", dtype="float8_e4m3fn"),
    ]
    flash3, custom = backend_lines([planned("flash3"), planned("custom")], Backends(rows, [], []))
    assert flash3.verdicts == (
        BackendVerdict("right", "a", 1, None, "bfloat16"),
        BackendVerdict("wrong", "b", 1, None, "float8_e4m3fn"),
    )
    assert custom.verdicts == (BackendVerdict("right", "c", 2, None),)


def test_a_package_whose_version_was_not_recorded_is_not_passed_over() -> None:
    runs = [planned("flash3", software={"torch": "2.13.0"})]
    (line,) = backend_lines(runs, Backends([certificate("flash3", software={"torch": "2.13.0"})], [], []))
    assert line.packages == "version of `flash_attn_interface` not recorded"


def test_a_package_that_is_not_called_as_its_module_is_found_in_what_every_run_records() -> None:
    software = {"torch": "2.11.0", "flash-attn-4": "4.0.0b36", "flash_attn_3": "3.0.0"}
    runs = [planned("flash4", software=software)]
    (line,) = backend_lines(runs, Backends([certificate("flash4", software=software)], [], []))
    assert line.packages == "flash-attn-4 4.0.0b36"


def test_a_package_that_was_installed_beside_a_backend_is_not_its_own() -> None:
    """A certificate of `custom`, made where FlashAttention-4 was installed, gave it flash-attn-4."""
    runs = {"torch": "2.11.0", "triton": "3.6"}
    installed = runs | {"flash-attn-4": "4.0.0b36"}
    trust = Backends([certificate(name, software=installed) for name in ("custom", "math", "mine")], [], [])
    custom, math, mine = backend_lines(
        [
            planned("custom", software=runs),
            planned("math", software=installed),
            planned("mine", software=runs),
        ],
        trust,
    )
    assert (custom.packages, math.packages, mine.packages) == ("triton 3.6", "torch 2.11.0", "torch 2.11.0")
    (unstarted,) = backend_lines([planned("mine", software=None)], Backends(trust.certificates[2:], [], []))
    assert unstarted.packages == "torch 2.11.0"


@pytest.mark.parametrize("name", names())
def test_a_backends_file_tells_without_torch_what_it_tells_with_it(name: str) -> None:
    backend, description = load(name), described(name)
    if description is not None:
        expected = backend.summary, backend.modules, backend.packages
        assert (description.summary, description.modules, description.packages) == expected


def test_the_default_settings_of_these_tests_are_those_of_a_run() -> None:
    from model.record.config import TrainConfig

    assert TRAIN.keys() == TrainConfig.model_fields.keys()
    assert backend_lines([], NOBODY) == []


def test_an_option_is_found_with_a_space_and_with_an_equals_sign_and_its_value_keeps_line_breaks() -> None:
    command = ["runner", "launch", "--set", "a=1", "--set=b=2\n3", "--settle=4"]
    assert options(command, "--set") == ["a=1", "b=2\n3"]
    assert options(None, "--set") == []


@pytest.mark.parametrize(
    ("parallel", "expected"),
    [
        ({"shard": 2}, "gathered for each pass of a block"),
        ({"shard": 1, "context": 4, "reshard": False}, "gathered once a step, and kept meanwhile"),
    ],
)
def test_how_sharded_parameters_are_gathered_is_said(parallel: dict[str, Any], expected: str) -> None:
    sharded = planned("cudnn")
    sharded["config"] = {**sharded["config"], "parallel": parallel}
    assert table([sharded])["Sharded parameters"] == expected
    assert "Sharded parameters" not in table([planned("cudnn")])


@pytest.mark.parametrize("reduce", ["dtype", "float32"])
def test_how_gradients_of_several_processes_are_added_up_is_said(reduce: str) -> None:
    split = planned("cudnn", train={"reduce": reduce})
    split["config"] = {**split["config"], "parallel": {"replicate": 2}}
    precision = "float32" if reduce == "float32" else "the precision of the parameters"
    assert table([split])["Gradients of several processes"] == f"added up in {precision}"
    assert "Gradients of several processes" not in table([planned("cudnn")])


def test_options_of_the_training_loop_are_said() -> None:
    train_options = {
        "compile": True, "loss": "linear_cross_entropy", "optimizer": "adamw_one_pass",
        "float8": "rowwise", "checkpoint_activations": True, "batch_size": 8, "accumulate": 4,
    }  # fmt: skip
    values = table([planned("cudnn", train=train_options)])
    assert values["`torch.compile`"] == "yes, block by block"
    assert values["Loss"] == "cross-entropy, joined with the output head"
    assert values["Optimizer"].startswith("AdamW by this project's one-pass kernels, weight decay 0.01")
    assert values["Precision"] == "bfloat16, products of the blocks in float8 (rowwise scaling)"
    assert values["Activations"].startswith("of each block recomputed")
    assert values["Batch"] == "8, in 4 parts whose gradients are added up"
