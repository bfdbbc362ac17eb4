"""What a group is called: the factors that tell it from the others."""

from __future__ import annotations

from pathlib import Path

import pytest

from analysis.store.collect import collect
from model.record.config import DataConfig, RunConfig, TrainConfig
from tests.analysis.conftest import Ask
from tests.analysis.fabricate import Folder, plan


def test_a_label_is_the_factors_that_vary_seed_apart(root: Path, sql: Ask) -> None:
    for run_id, attention, length in (("r1", "auto", 512), ("r2", "flash", 512), ("r3", "flash", 1024)):
        factors = {
            "attention": attention,
            "seed": 0,
            "train.sequence_length": length,
            "train.dtype": "bfloat16",
        }
        Folder(root, plan(run_id, attention=attention, factors=factors, group=run_id))
    collect(root)
    assert [row["label"] for row in sql("SELECT label FROM runs ORDER BY run_id")] == [
        "auto, sequence_length=512",
        "flash, sequence_length=512",
        "flash, sequence_length=1024",
    ]


def test_of_many_factors_a_label_has_those_that_differ_from_the_baseline(root: Path, sql: Ask) -> None:
    base = {"train.compile": False, "train.loss": "plain", "train.lr": 0.1, "model.lr": 1}
    design = {"order": "interleaved", "order_seed": 7, "baseline": base, "margins": {}, "until": None}
    changes = ({}, {"train.compile": True}, {"train.loss": "joined", "train.lr": 0.2}, {"model.lr": 2})
    for number, change in enumerate(changes):
        Folder(root, plan(f"r{number}", factors={**base, **change}, group=f"g{number}", design=design))
    collect(root)
    labels = [row["label"] for row in sql("SELECT label FROM runs ORDER BY run_id")]
    assert labels == ["baseline", "compile=true", "loss=joined, train.lr=0.2", "model.lr=2"]


def test_the_backend_of_a_baseline_that_is_no_more_than_that_is_named_in_every_cell_of_a_grid(
    root: Path, sql: Ask
) -> None:
    design = {"order": "interleaved", "order_seed": 7, "baseline": {"attention": "math"}}
    design |= {"margins": {}, "until": None}
    for attention in ("math", "flash"):
        for at in (1, 2):
            factors = {"attention": attention, "model.dim": at, "model.layers": at}
            name = f"{attention}-{at}"
            Folder(root, plan(name, attention=attention, factors=factors, group=name, design=design))
    collect(root)
    assert [row["label"] for row in sql("SELECT label FROM runs ORDER BY run_id")] == [
        "flash, dim=1, layers=1",
        "flash, dim=2, layers=2",
        "math, dim=1, layers=1",
        "math, dim=2, layers=2",
    ]


def test_a_label_that_the_study_gives_takes_the_place_of_the_factors(root: Path, sql: Ask) -> None:
    for number, label in enumerate(("eager", "compiled", None)):
        factors = {"train.compile": number, "seed": 0}
        Folder(root, plan(f"r{number}", factors=factors, group=f"g{number}", label=label))
    collect(root)
    rows = sql(
        "SELECT r.label, a.label AS given FROM runs r JOIN run_records a USING (run_id) ORDER BY run_id"
    )
    assert [tuple(row.values()) for row in rows] == [
        ("eager", "eager"),
        ("compiled", "compiled"),
        ("compile=2", None),
    ]


def test_a_group_of_which_a_launch_left_out_some_runs_keeps_one_label(root: Path, sql: Ask) -> None:
    for seed, label in enumerate(("fast", None)):
        Folder(root, plan(f"r{seed}", seed=seed, factors={"seed": seed}, group="g", label=label))
    collect(root)
    assert sql("SELECT label, count(*) AS runs FROM runs GROUP BY label") == [{"label": "fast", "runs": 2}]


def test_a_given_label_says_the_scale_where_scales_vary(root: Path, sql: Ask) -> None:
    for scale in ("full", "small"):
        Folder(root, plan(scale, scale=scale, group=scale, label="fast"))
    collect(root)
    labels = {row["label"] for row in sql("SELECT label FROM runs")}
    assert labels == {"fast, scale=full", "fast, scale=small"}


def test_a_given_label_that_another_group_has_by_its_factors_is_told_apart(root: Path, sql: Ask) -> None:
    for number, label in enumerate(("compile=1", None)):
        Folder(
            root, plan(f"r{number}", factors={"train.compile": number}, group=f"{number}" * 6, label=label)
        )
    collect(root)
    labels = [row["label"] for row in sql("SELECT label FROM runs ORDER BY run_id")]
    assert labels == ["compile=1 #000000", "compile=1 #111111"]


@pytest.mark.parametrize(
    ("cells", "labels"),
    [
        ((("B1", "flash math"), ("B2", "flash custom")), ["B1", "B2"]),
        ((("B1", "flash math"), ("B1", "flash custom")), ["flash math", "flash custom"]),
    ],
)
def test_the_backends_that_runs_call_are_named_only_where_nothing_else_tells_the_runs_apart(
    root: Path, sql: Ask, cells: tuple[tuple[str, str], ...], labels: list[str]
) -> None:
    for number, (shape, backends) in enumerate(cells):
        factors = {"call.shape": shape, "call.backends": backends}
        Folder(root, plan(f"r{number}", factors=factors, group=f"g{number}"))
    collect(root)
    run_labels = [row["label"] for row in sql("SELECT label FROM runs ORDER BY run_id")]
    assert [label.partition("=")[2] for label in run_labels] == labels


def test_where_runs_do_not_agree_on_a_baseline_labels_have_all_factors(root: Path, sql: Ask) -> None:
    for number, value in enumerate((False, True)):
        factors = {"train.compile": value, "train.loss": number, "seed": 0, "train.steps": number}
        design = {"order": "interleaved", "order_seed": 7, "baseline": {"train.compile": value}}
        design |= {"margins": {}, "until": None}
        Folder(root, plan(f"r{number}", factors=factors, group=f"g{number}", design=design))
    collect(root)
    labels = [row["label"] for row in sql("SELECT label FROM runs ORDER BY run_id")]
    assert labels == ["compile=false, loss=0, steps=0", "compile=true, loss=1, steps=1"]


def test_repeats_share_a_label_and_the_design_is_a_column(root: Path, sql: Ask) -> None:
    design = {"order": "interleaved", "order_seed": 7, "baseline": {"attention": "auto"}}
    design |= {"margins": {"loss": 0.005}, "until": None}
    Folder(root, plan("r1", group="g", repeat=1, position=2, block=1, design=design))
    folder = Folder(root, plan("r2", group="g", repeat=2, position=3, block=2, design=design))
    folder.start(load_before=0.5, cores=8, device_users=1)
    folder.end("completed", load_after=1.5)
    Folder(root, plan("old", attention="flash", factors={"attention": "flash"}))
    collect(root)
    columns = "label, repeat, position, block, design ->> '$.baseline.attention' AS base"
    assert [tuple(row.values()) for row in sql(f"SELECT {columns} FROM runs ORDER BY run_id DESC")] == [
        ("auto", 2, 3, 2, "auto"),
        ("auto", 1, 2, 1, "auto"),
        ("flash", 1, None, None, None),
    ]
    assert sql("SELECT load_before, load_after, cores, device_users FROM attempts") == [
        {"load_before": 0.5, "load_after": 1.5, "cores": 8, "device_users": 1}
    ]


def test_where_nothing_varies_the_label_is_the_backend(root: Path, sql: Ask) -> None:
    Folder(root, plan("r1", factors={"seed": 0}))
    Folder(root, plan("r2", seed=1, factors={"seed": 1}))
    collect(root)
    assert sql("SELECT DISTINCT label FROM runs") == [{"label": "auto"}]


def test_two_groups_never_share_a_label(root: Path, sql: Ask) -> None:
    """The study's file was edited between two launches: same factors, another configuration."""
    config = RunConfig(data=DataConfig(path="t.parquet"), train=TrainConfig(steps=7))
    Folder(root, plan("r1", group="aaaaaaaaaa"))
    Folder(root, plan("r2", group="bbbbbbbbbb", config=config))
    collect(root)
    labels = {row["label"] for row in sql("SELECT label FROM runs")}
    assert labels == {"auto #aaaaaa", "auto #bbbbbb"}


def test_runs_of_a_set_option_say_what_it_changed(root: Path, sql: Ask) -> None:
    """The study's own runs say their value too; a label that the study gives comes first."""
    for number, label in enumerate((None, "fast")):
        for steps in (60, 20):
            config = RunConfig(data=DataConfig(path="t.parquet"), train=TrainConfig(steps=steps))
            overridden = {"train.steps": {"own": 60, "by": "`--set`"}} if steps == 20 else {}
            fields = {"factors": {"train.compile": number}, "label": label, "overridden": overridden}
            Folder(root, plan(f"r{number}-{steps}", group=f"g{number}-{steps}", config=config, **fields))
    collect(root)
    labels = [row["label"] for row in sql("SELECT label FROM runs ORDER BY run_id DESC")]
    assert labels == ["fast, steps=60", "fast, steps=20", "compile=0, steps=60", "compile=0, steps=20"]
