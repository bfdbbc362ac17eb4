"""The command line in this process: a table of a hundred bad inputs would take minutes in processes of their own."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from runner.cli.run import run
from runner.commands._options import Settings
from tests.conftest import environment


class Answer(NamedTuple):
    """What a command line came to."""

    code: int
    out: str
    err: str


@pytest.fixture
def cli(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Answer]:
    """Run a command line as `runner` does, with the test's own root and working directory."""
    clean = environment()
    for name in set(os.environ) - set(clean):
        monkeypatch.delenv(name)
    for name, value in clean.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Settings, "root", Settings.root)
    for messages in (logging.getLogger("runner"), logging.getLogger("analysis")):
        for name in ("handlers", "level", "propagate"):
            monkeypatch.setattr(messages, name, getattr(messages, name))

    def call(*arguments: Any, root: Path | str = root) -> Answer:
        capsys.readouterr()
        code = run(["--root", str(root), *map(str, arguments)])
        return Answer(code, *capsys.readouterr())

    return call
