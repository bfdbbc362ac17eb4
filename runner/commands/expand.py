"""Show a study's runs in starting order, their factors, and the lines that produced each.

Examples:
  runner expand experiments/first.yaml
  runner expand experiments/first.yaml --only seed=0,1 --json
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from runner.commands._console import print_json, table
from runner.commands._options import AsJson, Only, ProfileName, ScaleName, Sets, cells_of
from runner.inputs.document import InvalidFile
from runner.inputs.profile import read_cluster
from runner.inputs.study import read_study
from runner.plan.layout import process_problems


def command(
    study: Annotated[Path, typer.Argument(metavar="STUDY", help="The study's YAML file.")],
    profile: ProfileName = None,
    scale: ScaleName = None,
    sets: Sets = None,
    only: Only = None,
    as_json: AsJson = False,
) -> None:
    parsed = read_study(study)
    cluster = read_cluster(profile, study)
    cells = cells_of(parsed, parsed.scale_for(scale, cluster), sets, only)
    if profile and (problems := process_problems(cells, cluster)):
        raise InvalidFile(problems)
    if as_json:
        print_json([cell.as_json() for cell in cells])  # in the order of the file
        return
    axes = list(cells[0].factors) if cells else []
    again = ["repeat"] if any(cell.repeat > 1 for cell in cells) else []
    rows = [
        [
            cell.run_id,
            *(str(cell.factors[axis]) for axis in axes),
            *(str(cell.repeat) for _ in again),
            str(cell.position),
            str(cell.block or ""),
            " or ".join(cell.expected),
            " ".join(cell.why),
        ]
        for cell in sorted(cells, key=lambda cell: cell.position)
    ]
    table(["run", *axes, *again, "place", "block", "expected", "why"], rows)
