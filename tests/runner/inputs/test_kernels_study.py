"""The shapes of experiments/kernels.yaml: whatever the scale, its runs give the figures that it promises."""

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
FIGURES = {name for name in charts.names() if name.startswith("kernel_")}
OVER_LENGTH = {
    f"kernel_{name}" for name in ("time", "forward", "backward", "speedup", "memory", "saved", "passes")
}


def rows(case: Case, run_id: str) -> list[dict[str, object]]:
    """Two backends at a shape, each in all modes and directions."""
    shape = {name: value for name, value in asdict(case).items() if name != "device"} | {
        "device": case.device
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
        ("full", FIGURES),
        ("figures", FIGURES),
        ("laptop", FIGURES - {"kernel_host"}),  # a CPU has no graphs
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
    assert applied == FIGURES - {"kernel_heads"}


def test_the_smallest_scale_with_all_figures_is_a_fraction_of_the_whole() -> None:
    study = read_study(STUDY)
    assert 3 * len(expand(study, "figures")) < len(expand(study, "full"))
