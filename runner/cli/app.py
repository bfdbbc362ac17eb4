"""The application: every file of `runner/commands` whose name has no leading underscore is a verb.

A verb's file defines `command`, whose signature gives the verb's options; the file's docstring is its help
text. Only the invoked verb is imported, which keeps a call and the list of verbs fast.
"""

from __future__ import annotations

import ast
import gc
import re
from collections.abc import Callable
from copy import copy
from functools import wraps
from importlib import import_module
from keyword import iskeyword
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup

from model import modules
from model.record.errors import UserError, did_you_mean, local_path
from runner import commands

_CONTEXT = {"help_option_names": ["--help", "-h"]}
# From an empty folder to a report, in the order in which they are needed. Help shows them first.
EVERY_DAY = ("init", "data", "launch", "status", "collect", "sql", "report", "compare")


def verbs() -> dict[str, Path]:
    """The file of each verb, by name. A verb named like a Python keyword has the file `NAME_.py`."""
    files = modules(Path(commands.__path__[0]))
    short = {name: name.rstrip("_") for name in files}
    return {short[name] if iskeyword(short[name]) else name: path for name, path in files.items()}


def _refuse_slips(command: Any, ctx: Any, args: list[str], own: int | None = None) -> None:
    """Refuse what click would take for something else.

    That is an option that is given twice but holds one value, of which click would drop all but the last; a
    long option with one dash, of which click would take all letters but the first for the value of that; and
    an empty path, such as that of an unset shell variable, which would be the working directory.

    Args:
        own: how many of these arguments may be options of this command; None: all.
    """
    if ctx.resilient_parsing:
        return
    long = {name for param in command.get_params(ctx) for name in (*param.opts, *param.secondary_opts)}
    for name in (arg.partition("=")[0] for arg in args[:own]):
        if len(name) > 2 and not name.startswith("--") and f"-{name}" in long:
            raise UserError(f"{name}: no such option; type -{name}")
    values, _, given = command.make_parser(ctx).parse_args(args=list(args))
    for param in given:
        texts = values[param.name] if isinstance(values[param.name], list | tuple) else [values[param.name]]
        if "" in texts and param.name in getattr(command, "paths", ()):
            raise typer.BadParameter("the path is empty; write it in full", ctx=ctx, param=param)
        flag = getattr(param, "is_flag", False) and not param.secondary_opts
        if given.count(param) > 1 and not (param.multiple or flag):
            names = " / ".join(f"'{name}'" for name in (*param.opts, *param.secondary_opts))
            hint = {"param_hint": names} if param.secondary_opts else {}
            raise typer.BadParameter("given more than once; keep one", ctx=ctx, param=param, **hint)


class ReaderGone(Exception):
    """Nobody reads the output any more. Typer would turn a BrokenPipeError into exit code 1."""


class _Verb(TyperCommand):
    """A verb. Click's types are Any: some typer versions bundle their own click.

    Attributes:
        paths: the parameters whose values are paths.
    """

    paths: frozenset[str]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        options = {name for param in self.get_params(ctx) for name in (*param.opts, *param.secondary_opts)}

        def is_text(arg: str) -> bool:
            name = arg.partition("=")[0]
            return arg.startswith("--") and name not in options and (" " in name or "\n" in arg)

        # A space before a text that begins like an option, such as SQL that begins with a comment.
        args = [f" {arg}" if is_text(arg) else arg for arg in args]
        _refuse_slips(self, ctx, args)
        try:
            return super().parse_args(ctx, args)
        except typer.BadParameter as error:  # some typer versions speak pydantic's language
            from runner.inputs.validation import in_plain_words

            text = in_plain_words(error.message)
            error.message = re.sub("must be a valid integer.*", "must be a whole number", text)
            raise


class _Verbs(TyperGroup):
    """Finds verbs by their files."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.called = ""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        files = verbs()
        _refuse_slips(self, ctx, args, next((n for n, arg in enumerate(args) if arg in files), None))
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            raise ReaderGone from error

    def list_commands(self, ctx: Any) -> list[str]:
        return list(verbs())

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        self.called = args[0]
        if self.called not in (files := verbs()) and not ctx.resilient_parsing:
            raise UserError(f"no command '{self.called}' {did_you_mean(self.called.lower(), list(files))}")
        return super().resolve_command(ctx, args)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in (files := verbs()):
            return None
        if ctx.resilient_parsing and cmd_name != self.called:  # a shell completes verbs: their names will do
            return TyperCommand(cmd_name, help=_summary(files[cmd_name]))
        module = import_module(f"runner.commands.{files[cmd_name].stem}")
        # Its examples keep their lines, which click would otherwise join.
        help_text = (module.__doc__ or "").replace("\nExamples:\n", "\n\b\nExamples:\n")
        single = typer.Typer(add_completion=False, rich_markup_mode=None)
        single.command(cmd_name, cls=_Verb, help=help_text, context_settings=_CONTEXT)(
            _taking_local_paths(module.command)
        )
        command: Any = typer.main.get_command(single)
        hints = get_type_hints(module.command)
        command.paths = frozenset(name for name, hint in hints.items() if Path in (hint, *get_args(hint)))

        # `--root` may also follow the verb. Its default and the variable are for the one before the verb.
        ahead = next(param for param in self.params if param.name == "root")
        after = copy(ahead)
        after.expose_value, after.default, after.envvar = False, None, None

        def choose(_verb: Any, _param: Any, given: str | None) -> None:
            if given is None:
                return
            source = ctx.get_parameter_source("root")
            if source and source.name == "COMMANDLINE":
                raise UserError(f"--root is given before {ctx.invoked_subcommand} and after it; keep one")
            _choose_root(given, "--root")

        after.callback = choose
        command.params.append(after)

        # What is imported by now stays: Python would take 0.1 s to search it for cycles at its end. DuckDB is
        # imported later, because it names on stderr what is never freed.
        gc.freeze()
        return command

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        files = verbs()
        width = max(map(len, files))
        others = [verb for verb in files if verb not in EVERY_DAY]
        for title, group in (("Every day", EVERY_DAY), ("Others", others)):
            with formatter.section(title):
                formatter.write_dl([(verb.ljust(width), _summary(files[verb])) for verb in group])


def _taking_local_paths(command: Callable[..., None]) -> Callable[..., None]:
    """A verb that takes each path as `local_path` does: a shell leaves the tilde in `--out=~/x` as it is."""

    @wraps(command)
    def with_local_paths(**given: Any) -> None:
        for name, value in given.items():
            if isinstance(value, Path):
                given[name] = local_path(value)
            elif isinstance(value, list):
                given[name] = [local_path(path) if isinstance(path, Path) else path for path in value]
        command(**given)

    return with_local_paths


def _summary(path: Path) -> str:
    """The first line of a file's docstring, without importing it."""
    return (ast.get_docstring(ast.parse(path.read_bytes())) or "").partition("\n")[0]


app = typer.Typer(
    name="runner",
    cls=_Verbs,
    help="Turn one YAML study into runs, a database and a report.",
    no_args_is_help=True,
    context_settings=_CONTEXT,
    add_completion=True,
    rich_markup_mode=None,  # plain help starts faster
    pretty_exceptions_enable=False,
)


def _show_version(wanted: bool) -> None:
    """Print the version and exit, if that was asked for."""
    if wanted:
        from runner.commands._console import show
        from runner.state.code.provenance import own_version

        show(f"runner {own_version()}")
        raise typer.Exit


@app.callback()
def _globals(
    ctx: typer.Context,
    root: Annotated[
        str, typer.Option("--root", envvar="RUNNER_ROOT", help="The workspace that holds all results.")
    ] = "runs",
    _version: Annotated[
        bool,
        typer.Option("--version", help="Show the version and exit.", callback=_show_version, is_eager=True),
    ] = False,
) -> None:
    source = ctx.get_parameter_source("root")
    _choose_root(root, "RUNNER_ROOT" if source and source.name == "ENVIRONMENT" else "--root")


def _choose_root(given: str, by: str) -> None:
    """Set the workspace of this invocation, as given by this option or variable."""
    from runner.commands._options import Settings, workspace

    Settings.root = workspace(given, by)
