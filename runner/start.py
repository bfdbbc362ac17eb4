"""Starts a module from the code snapshot that contains this file: `python -P .../runner/start.py -m MODULE`.

This is the first of our code to run in a job, so it imports only the standard library. Whatever is installed,
linked or on PYTHONPATH, the packages below come from the snapshot: their finder precedes all others, even
those of editable installs. Other code is found as usual.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import runpy
import sys
from collections.abc import Mapping, Sequence
from importlib.machinery import FileFinder, ModuleSpec, SourceFileLoader
from pathlib import Path
from types import ModuleType

PACKAGES = ("analysis", "model", "runner")


def read(folder: Path) -> dict[str, bytes]:
    """A folder's files by relative path, without caches and hidden files."""
    files: dict[str, bytes] = {}
    start = len(f"{folder}/")
    for parent, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith((".", "__pycache__"))]
        for name in names:
            path = f"{parent}/{name}"  # Path objects take longer than the reading
            if not name.startswith(".") and not name.endswith(".pyc") and os.path.isfile(path):  # noqa: PTH113
                with open(path, "rb") as file:  # noqa: PTH123
                    files[path[start:]] = file.read()
    return files


def digest(files: Mapping[str, bytes]) -> str:
    """SHA-256 of names and contents, which is also the snapshot's folder name."""
    total = hashlib.sha256()
    for name in sorted(files):
        total.update(f"{name}\n{len(files[name])}\n".encode())
        total.update(files[name])
    return total.hexdigest()


class _Source(SourceFileLoader):
    """Loads source files only: a snapshot neither trusts nor writes bytecode."""

    def path_stats(self, path: str) -> Mapping[str, float]:
        raise OSError(path)


class _Finder:
    """Finds only our packages, and only in the snapshot."""

    def __init__(self, home: Path) -> None:
        self.home = str(home)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, _target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The module's spec in the snapshot; raises rather than look elsewhere if it is missing."""
        if name.partition(".")[0] not in PACKAGES:
            return None
        folder = next(iter(path)) if path else self.home
        if spec := FileFinder(folder, (_Source, [".py"])).find_spec(name):
            return spec
        raise ModuleNotFoundError(f"No module named {name!r} in the code snapshot {self.home}", name=name)


def install(home: Path) -> None:
    """Make this process and its children import the packages from `home`."""
    if loaded := [name for name in PACKAGES if name in sys.modules]:
        sys.exit(f"{', '.join(loaded)} was imported before the code snapshot {home} was installed")
    own = str(home / "runner")  # on sys.path without -P; its files must not become top-level modules
    sys.path[:] = [str(home), *(entry for entry in sys.path if entry != own)]
    sys.meta_path.insert(0, _Finder(home))
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(home), before] if before else [str(home)])
    for name in PACKAGES:
        spec = importlib.util.find_spec(name)
        assert spec and spec.origin == str(home / name / "__init__.py"), f"{name} was found at {spec}"


def main() -> None:
    """Verify the snapshot's hash, then run a module from it in this process."""
    home = Path(__file__).resolve().parent.parent
    arguments = sys.argv[1:]
    if arguments[:1] == ["-u"]:  # submitit puts it after the script, where Python itself ignores it
        del arguments[0]
        for stream in (sys.stdout, sys.stderr):
            stream.reconfigure(write_through=True)  # type: ignore[union-attr]  # a TextIOWrapper at run time
    if arguments[:1] != ["-m"] or len(arguments) < 2:
        sys.exit("usage: python -P start.py [-u] -m MODULE [ARGUMENT...]")
    if digest(read(home)) != home.name:
        sys.exit(f"the code snapshot {home} was edited after it was taken; launch again to take a new one")
    install(home)
    sys.argv = arguments[1:]
    runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
