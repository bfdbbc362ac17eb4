"""The figures of losses: which runs they pair, what they hold them against, and how they thin them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from analysis import charts
from analysis.charts._curves import mean
from analysis.query.ask import ask
from analysis.report import facts
from analysis.store import database as store
from analysis.store.collect import collect
from analysis.verdicts import guard
from model.record.config import DataConfig, RunConfig, TrainConfig
from model.record.records import DesignRecord
from tests.analysis.charts.drawn import draw
from tests.analysis.demo import write_demo
from tests.analysis.fabricate import Folder, completed, plan


def test_a_backend_that_computes_something_else_leaves_the_band(root: Path) -> None:
    """One backend was 0.1 nats off, and the fastest of its study."""
    write_demo(root)
    collect(root)
    rows = ask(root, facts.literal(charts.load("loss_difference").sql, "backends")).records()
    last = {row["label"]: row["value"] for row in rows}
    assert last.pop("flash3") == pytest.approx(0.1, abs=0.01)
    assert all(abs(value) < 0.01 for value in last.values())


def test_rounding_between_backends_is_not_blown_up(root: Path) -> None:
    for number, backend in enumerate(("auto", "flash", "cudnn")):
        folder = Folder(root, plan(f"r{number}", attention=backend))
        folder.start()
        for step in range(5, 101, 5):
            folder.step(step, loss=3 + 1e-8 * number)
    collect(root)
    figure = draw(root, "loss_difference")
    assert figure
    lines = [layer for layer in figure.spec["layer"] if layer["mark"]["type"] == "line"]
    low, high = lines[0]["encoding"]["y"]["scale"]["domain"]
    assert low < -0.01 < 0.01 < high


def test_a_sound_backend_is_not_held_against_two_that_are_the_same(root: Path) -> None:
    """On a CPU, auto and flash are one kernel: were they part of their own median, theirs would be a band of no width."""
    for backend, offset in (("auto", 0.0), ("flash", 0.0), ("tiled", 3e-7)):
        folder = Folder(root, plan(backend, attention=backend))
        folder.start()
        for step in range(5, 101, 5):
            folder.step(step, loss=3 + offset)
    collect(root)
    rows = ask(root, facts.literal(charts.load("loss_difference").sql, "backends")).records()
    last = {row["label"]: row["value"] for row in rows}
    assert last == pytest.approx({"auto": -1.5e-7, "flash": -1.5e-7, "tiled": 3e-7}, abs=1e-9)


def test_losses_are_held_against_the_declared_baseline_where_there_is_one(root: Path) -> None:
    design = DesignRecord(order="interleaved", baseline={"attention": "flash"}, margins={"loss": 0.02})
    for backend, loss in (("auto", 3.001), ("flash", 3.0)):
        folder = Folder(root, plan(backend, attention=backend, design=design))
        folder.start()
        for step in range(5, 101, 5):
            folder.step(step, loss=loss)
    collect(root)
    rows = ask(root, facts.literal(charts.load("loss_difference").sql, "backends")).records()
    assert {(row["label"], row["value"], row["margin"]) for row in rows} == {("auto", 0.001, 0.02)}
    figure = draw(root, "loss_difference")
    assert figure
    assert "loss minus flash, nats" in json.dumps(figure.spec)
    assert figure.used == {"auto", "flash"}, "the baseline is not left out"
    assert "Shaded: the stated margin of 0.02 nats" in figure.caption


def test_losses_are_paired_by_the_text_not_by_the_path_of_its_file(root: Path) -> None:
    for index, backend in enumerate(("auto", "flash", "cudnn")):
        data = DataConfig(path=f"copy{index}.parquet")
        config = RunConfig(attention=backend, data=data, train=TrainConfig(steps=100))
        completed(root, backend, attention=backend, config=config)
    collect(root)
    figure = draw(root, "loss_difference")
    assert figure
    assert figure.used == {"auto", "flash", "cudnn"}


def test_losses_of_other_seeds_or_lengths_are_not_paired(root: Path) -> None:
    for number, backend in enumerate(("auto", "flash", "cudnn")):
        completed(root, f"r{number}", attention=backend, seed=number)
    collect(root)
    assert draw(root, "loss_difference") is None


@pytest.mark.fault
def test_runs_on_a_file_that_changed_between_launches_are_not_paired_and_said(root: Path) -> None:
    """A launch of a part of the cells does not see what the others were planned with."""
    for name in ("auto", "math", "flash"):
        completed(root, name, attention=name)
    collect(root)
    assert draw(root, "loss_difference")
    completed(root, "custom", attention="custom", data_fingerprint="e" * 32)
    collect(root)
    figure = draw(root, "loss_difference")
    assert figure is not None
    assert figure.used == {"auto", "math", "flash"}
    with store.open_for_reading(root) as connection:
        sentences = [
            difference.sentence for difference in guard.among(facts.gather(connection, "backends").runs)
        ]
    assert "Completed runs read different texts of the same name: train.parquet." in sentences


@pytest.mark.parametrize("name", ["loss", "loss_difference", "tokens_over_steps"])
def test_points_as_wide_as_a_bin_are_the_same_grouped_or_not(root: Path, name: str) -> None:
    """Beside runs that are longer than the others, whose points are as wide as several of theirs."""
    for seed, steps in enumerate((300, 700)):
        for attention in ("auto", "flash", "math"):
            run = plan(f"{attention}{seed}", attention=attention, seed=seed, steps=steps)
            folder = Folder(root, run)
            folder.start()
            for step in range(1, steps + 1):
                folder.step(step, steps=1, loss=10 / (step + len(attention)))
            folder.end()
    collect(root)
    sql = facts.literal(charts.load(name).sql, "backends")
    grouped = sql
    for part, other in (
        ("WHERE narrowest < width", ""),
        ("b.width = c.width", "false"),
        ("b.width <> c.width", "true"),
    ):
        assert part in grouped
        grouped = grouped.replace(part, other)
    assert len(rows := ask(root, sql).records()) > 200
    assert ask(root, grouped).records() == rows


def test_a_mean_does_not_depend_on_the_order_of_the_rows() -> None:
    """Held with a plain sum, whose last bits depend on the order more than those of the compensated one."""
    import duckdb

    sets = """SELECT i, j, round(7 + (hash(4 * i + j) % 1000000000) / 1e9, 9) AS loss
        FROM range(5000) a(i), range(4) b(j)"""

    def differing(expression: str) -> int:
        first, second = (expression.replace("loss", f"loss ORDER BY {order}") for order in ("j", "j % 2, -j"))
        means = f"SELECT {first} AS one, {second} AS other FROM ({sets}) GROUP BY i"
        return int(duckdb.sql(f"SELECT count(*) FROM ({means}) WHERE one <> other").fetchall()[0][0])

    assert differing("round(avg(loss), 9)")
    assert not differing(mean("loss").replace("favg", "avg"))
