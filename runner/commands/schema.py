"""Print the JSON Schema of a study or profile."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from runner.commands._console import print_json


def command(kind: Annotated[Literal["study", "profile"], typer.Argument(help="The kind of file.")]) -> None:
    from runner.spec.schema import json_schema

    print_json(json_schema(kind))
