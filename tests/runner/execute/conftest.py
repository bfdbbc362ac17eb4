"""Stand-ins for Slurm's commands."""

import pytest

from runner.state import slurm


@pytest.fixture
def says(tmp_path, monkeypatch):
    """Puts one of Slurm's commands on PATH that prints a text; nothing else is there.

    Each call appends its command line to the file `asked`.
    """
    folder = tmp_path / "slurm"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setattr(slurm, "BAR", "|")

    def answer(command, text="", code=0, also=""):
        (folder / f"{command}.said").write_text(text + "\n")
        (folder / command).write_text(
            f'#!/bin/sh\necho "{command} $*" >>{tmp_path}/asked\n{also}\n/bin/cat {folder}/{command}.said\nexit {code}\n'
        )
        (folder / command).chmod(0o755)

    return answer
