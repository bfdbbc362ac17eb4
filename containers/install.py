"""Install Assay, but no PyTorch: one that is there stays, with all that is built for it.

    python3 containers/install.py [EXTRA ...]

The requirements are those of pyproject.toml and of these of its extras, without torch. Needs pip alone.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from importlib.metadata import distributions
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[1]
# Beside what requires torch: its compiler, by all its names, and what extensions are compiled against.
HELD = {"torch", "triton", "pytorch-triton", "pytorch-triton-rocm", "numpy"}


def requirements(extras: Iterable[str]) -> list[str]:
    """What the project and these extras require, without torch. Exits if there is no such extra."""
    import tomllib

    project = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    optional = project["optional-dependencies"]
    wanted = list(project["dependencies"])
    for extra in extras:
        if extra not in optional:
            sys.exit(f"no extra '{extra}' in pyproject.toml: choose from {', '.join(sorted(optional))}")
        wanted += optional[extra]
    return [requirement for requirement in wanted if _package(requirement) != "torch"]


def held() -> Iterator[str]:
    """The packages that must stay as they are, as pip's constraints."""
    for installed in distributions():
        name = _package(installed.metadata["Name"])
        if name in HELD or "torch" in map(_package, installed.requires or []):
            yield f"{name}=={installed.version}"


def _package(requirement: str) -> str:
    """The name of a package in a requirement, as pip compares names."""
    return re.sub(r"[-_.]+", "-", re.split(r"[^\w.-]", requirement.strip(), maxsplit=1)[0]).lower()


def main() -> None:
    """Install the requirements, then the project itself."""
    if sys.version_info < (3, 11):  # noqa: UP036 - pip would say so only after it has installed all else
        sys.exit(f"Assay needs Python 3.11 or newer; this is {sys.version.split()[0]}: choose a newer image")
    with tempfile.TemporaryDirectory() as folder:
        constraints = Path(folder) / "held.txt"
        constraints.write_text("".join(f"{line}\n" for line in held()), encoding="utf-8")
        pip = [sys.executable, "-m", "pip", "install", "--no-cache-dir"]
        subprocess.run([*pip, "--constraint", constraints, *requirements(sys.argv[1:])], check=True)
        subprocess.run([*pip, "--no-deps", PROJECT], check=True)


if __name__ == "__main__":
    main()
