"""The command line's frame: the application, its global settings, and what several commands share."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

app = typer.Typer(
    name="runner",
    help="One YAML study becomes runs, a database and a report.",
    no_args_is_help=True,
    add_completion=True,
    rich_markup_mode=None,  # plain help starts in half the time
    pretty_exceptions_enable=False,
)

StudyPath = Annotated[Path, typer.Argument(metavar="STUDY", help="The study's YAML file.")]
StudyName = Annotated[str | None, typer.Argument(metavar="[STUDY]", help="A study's name, or its file.")]
ProfileName = Annotated[
    str | None,
    typer.Option("--profile", "-p", help="A profile's name or file [env: RUNNER_PROFILE; default: local]."),
]
ScaleName = Annotated[
    str | None, typer.Option("--scale", "-s", help="A scale of the study [default: the profile's].")
]
Sets = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="A.B=VALUE", help="Override a setting in every run; repeatable."),
]
Only = Annotated[
    list[str] | None,
    typer.Option(
        "--only", metavar="FACTOR=VALUE", help="Only these cells; VALUE,VALUE for several; repeatable."
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show runs and batch script; start nothing.")]
Rehearse = Annotated[bool, typer.Option("--rehearse", help="Run each cell for two steps first, apart.")]
Wait = Annotated[
    bool | None, typer.Option("--wait/--detach", help="Wait for the end, or return at once [local: wait].")
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before submitting to a cluster.")]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")]
Root = Annotated[
    Path, typer.Option("--root", envvar="RUNNER_ROOT", help="The workspace that holds all results.")
]


class Settings:
    """Global options of this call."""

    root = Path("runs")


def print_json(value: Any) -> None:
    """Print one JSON document on stdout."""
    from pydantic_core import to_json

    # json.dumps has no C code for an indent: 0.4 s for the status of 10,000 runs, where this takes 0.03 s.
    sys.stdout.write(to_json(value, indent=1, fallback=str).decode() + "\n")
