"""The shapes of experiments/kernels.yaml, fp8.yaml and the tiles of tiles.yaml: whatever the scale, their runs give their figures."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import pytest

from analysis import charts
from model.record.case import Case
from model.record.kernels import MODES
from runner.inputs.expansion import expand
from runner.inputs.study import read_study

STUDY = Path(__file__).parents[3] / "experiments" / "kernels.yaml"
TILES = {"kernel_tile", "kernel_tile_keys", "kernel_tile_queries"}
FIGURES = {name for name in charts.names() if name.startswith("kernel_")}
OF_SHAPES = FIGURES - TILES - {"kernel_fp8"}
OVER_LENGTH = {
    f"kernel_{name}" for name in ("time", "forward", "backward", "speedup", "memory", "saved", "passes")
}


def rows(case: Case, run_id: str) -> list[dict[str, object]]:
    """Two backends at a shape, each in all modes and directions."""
    tile = dict(zip(("tile_queries", "tile_keys"), case.tile or (None, None), strict=True))
    shape = {name: value for name, value in asdict(case).items() if name != "device"} | {
        "device": case.device,
        **tile,
    }
    return [
        shape
        | {
            "attention": name,
            "direction": way,
            "mode": mode,
            "run_id": run_id,
            "outcome": "completed",
            "calls": 7,
        }
        | {"milliseconds": 1.0, "milliseconds_low": 1.0, "milliseconds_high": 1.0, "memory_bytes": 2**20}
        | {"tflops": 1.0, "ceiling_tflops": 2.0}
        for name in ("flash", "math")
        for way in ("forward", "backward", "both")
        for mode in MODES[case.device]
    ]


@pytest.mark.parametrize(
    ("scale", "figures"),
    [
        ("full", OF_SHAPES),
        ("figures", OF_SHAPES),
        ("laptop", OF_SHAPES - {"kernel_host"}),  # a CPU has no graphs
        ("short", OVER_LENGTH | {"kernel_host", "kernel_efficiency"}),
        ("goals", {"kernel_efficiency"}),  # its tables are what it is for
    ],
)
def test_the_shapes_of_a_scale_give_its_figures(scale: str, figures: set[str]) -> None:
    cells = expand(read_study(STUDY), scale)
    measured = [row for cell in cells for row in rows(cell.config.attention_case, cell.run_id)]
    assert {name for name in FIGURES if charts.load(name).applies(measured)} == figures
    for name in figures:
        figure = charts.load(name).build(measured, {})
        assert figure and "not measured" not in figure.caption, name


@pytest.mark.parametrize("scale", ["full", "small"])
def test_the_shapes_of_seed_002_give_its_twelve_figures(scale: str) -> None:
    """All of ours but that of heads at one embedding dim, in place of which it has the rate over embedding dim."""
    cells = expand(read_study(STUDY.parent / "seeds" / "002.yaml"), scale)
    measured = [row for cell in cells for row in rows(cell.config.attention_case, cell.run_id)]
    applied = {name for name in FIGURES if charts.load(name).applies(measured)}
    assert applied == OF_SHAPES - {"kernel_heads"}


@pytest.mark.parametrize("scale", ["full", "laptop"])
def test_sizes_of_tiles_have_figures_over_their_keys_and_over_their_queries(scale: str) -> None:
    cells = expand(read_study(STUDY.with_name("tiles.yaml")), scale)
    measured = [row for cell in cells for row in rows(cell.config.attention_case, cell.run_id)]
    figures = {name for name in FIGURES if charts.load(name).applies(measured)}
    assert figures == TILES | {"kernel_efficiency"}
    assert all(charts.load(name).build(measured, {}) for name in figures)


@pytest.mark.parametrize("scale", ["full", "short"])
def test_two_precisions_have_a_figure_of_what_8_bits_gain(scale: str) -> None:
    cells = expand(read_study(STUDY.with_name("fp8.yaml")), scale)
    errors = dict.fromkeys(
        ("allowed", "own", "whole", "narrow", "whole_outliers", "narrow_outliers")
    )  # of no certificate
    measured = [row | errors for cell in cells for row in rows(cell.config.attention_case, cell.run_id)]
    assert charts.load("kernel_fp8").applies(measured)
    figure = charts.load("kernel_fp8").build(measured, {})
    assert figure and len(figure.used) == len(cells)


def test_the_smallest_scale_with_all_figures_is_a_fraction_of_the_whole() -> None:
    study = read_study(STUDY)
    assert 3 * len(expand(study, "figures")) < len(expand(study, "full"))
