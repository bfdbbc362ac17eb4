"""A process that draws: a task in JSON on each line of stdin, its answer on a line of stdout."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from analysis.drawings import draw
from analysis.drawings.beside import digest
from analysis.drawings.bundle import bundled


def main() -> None:
    """Draw until nothing is left to draw."""
    for line in sys.stdin:
        try:
            answer = {"made": _done(json.loads(line))}
        except Exception as error:  # the process that asked raises it
            answer = {"error": f"{type(error).__name__}: {error}"}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


def _done(task: dict[str, Any]) -> str:
    """Write a figure's files, or give the SHA-256 of a figure without a name, or the script of pages."""
    if "script" in task:
        return bundled(task["script"])
    if "name" not in task:
        return digest(task["spec"], task["version"])
    draw.write(Path(task["folder"]), task["name"], task["spec"], task["formats"], task["version"])
    return ""


if __name__ == "__main__":
    main()
