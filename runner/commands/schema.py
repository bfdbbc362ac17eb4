"""Print the JSON Schema of a study, a profile or a mapping, or what the database's columns mean.

Examples:
  runner schema study > study.schema.json
  runner schema database
"""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from runner.commands._console import print_json, show


def command(
    kind: Annotated[
        Literal["study", "profile", "mapping", "database"],
        typer.Argument(metavar="KIND", help="What to print."),
    ],
) -> None:
    if kind == "database":
        from analysis.store.dictionary import dictionary

        show(dictionary().rstrip())
        return
    from runner.inputs.schema import json_schema

    print_json(json_schema(kind))
