"""Starts a module from a code snapshot: `python -P -c TEXT SNAPSHOT -m MODULE`, with the text of this file.

This is the first of our code to run in a job, so it imports only the standard library. It reads the snapshot
once, checks what it has read against the folder's name, and runs that: nothing that others do with the folder
changes what runs. Whatever is installed, linked or on PYTHONPATH, the packages below come from the snapshot:
their finder precedes all others, even those of editable installs. Other code is found as usual.

Launchers of earlier versions start the file in the snapshot, `python -P .../runner/start.py -m MODULE`, or
call `install`.
"""

from __future__ import annotations

import hashlib
import importlib.util
import linecache
import os
import runpy
import sys
from collections.abc import Mapping, Sequence
from importlib.machinery import ModuleSpec, SourceFileLoader
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
    """Loads a module from bytes: a snapshot neither trusts nor writes bytecode."""

    def __init__(self, name: str, path: str, text: bytes) -> None:
        super().__init__(name, path)
        self._text = text

    def path_stats(self, path: str) -> Mapping[str, float]:
        raise OSError(path)

    def get_data(self, path: str) -> bytes:
        if path != self.path:
            return super().get_data(path)
        # Triton compiles the lines that `inspect` finds. Those without a time are never read again from disk.
        lines = importlib.util.decode_source(self._text).splitlines(keepends=True)
        linecache.cache[path] = (len(self._text), None, lines, path)
        return self._text


class _Finder:
    """Finds only our packages, and only in what was read of the snapshot."""

    def __init__(self, home: Path, files: Mapping[str, bytes]) -> None:
        self.home, self.files = home, files

    def find_spec(
        self, name: str, _path: Sequence[str] | None = None, _target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The module's spec in the snapshot; raises rather than look elsewhere if it is missing."""
        if name.partition(".")[0] not in PACKAGES:
            return None
        stem = name.replace(".", "/")
        for file, folders in ((f"{stem}/__init__.py", [str(self.home / stem)]), (f"{stem}.py", None)):
            if file in self.files:
                path = str(self.home / file)
                loader = _Source(name, path, self.files[file])
                return importlib.util.spec_from_file_location(
                    name, path, loader=loader, submodule_search_locations=folders
                )
        raise ModuleNotFoundError(f"No module named {name!r} in the code snapshot {self.home}", name=name)


def install(home: Path) -> None:
    """Make this process import the packages from `home` as it is now; ends the process if it was edited.

    Child processes look for modules neither there nor in the folder that they start in: others may have put a
    sitecustomize.py or a torch.py there by then.
    """
    if loaded := [name for name in PACKAGES if name in sys.modules]:
        sys.exit(f"{', '.join(loaded)} was imported before the code snapshot {home} was installed")
    try:
        files = read(home)
    except OSError as error:  # its file's name may be anybody's
        sys.exit(f"the code snapshot {home} cannot be read: {error.strerror}")
    if not files:
        sys.exit(f"the code snapshot {home} is missing")
    if digest(files) != home.name:
        sys.exit(f"the code snapshot {home} was edited after it was taken; launch again to take a new one")
    own = str(home / "runner")  # on sys.path without -P; its files must not become top-level modules
    sys.path[:] = [entry for entry in sys.path if entry != own]
    sys.meta_path.insert(0, _Finder(home, files))
    os.environ["PYTHONSAFEPATH"] = "1"
    for name in PACKAGES:
        spec = importlib.util.find_spec(name)
        assert spec and spec.origin == str(home / name / "__init__.py"), f"{name} was found at {spec}"


def main() -> None:
    """Run a module from a snapshot in this process."""
    arguments = sys.argv[1:]
    if "__file__" in globals():
        home = Path(__file__).resolve().parent.parent
    else:  # the text of this file, after -c
        home = Path(arguments.pop(0)).resolve() if arguments else Path()
    if arguments[:1] == ["-u"]:  # submitit puts it after the script, where Python itself ignores it
        del arguments[0]
        for stream in (sys.stdout, sys.stderr):
            stream.reconfigure(write_through=True)  # type: ignore[union-attr]  # a TextIOWrapper at run time
    if arguments[:1] != ["-m"] or len(arguments) < 2:
        sys.exit("usage: python -P start.py [-u] -m MODULE [ARGUMENT...]")
    install(home)
    sys.argv = arguments[1:]
    runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
