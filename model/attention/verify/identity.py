"""What a certificate is about: which code, which software, which device."""

from __future__ import annotations

import ast
import hashlib
import sys
from functools import cache
from importlib.metadata import packages_distributions
from importlib.util import find_spec
from pathlib import Path

from model import attention
from model.attention.verify.certificate import key
from model.measure import machine
from model.record import backends
from model.record.case import Case

_HERE = Path(__file__).parent
_PROJECT = _HERE.parents[2]
_CUDA_LIBRARIES = (
    *("nvidia-cudnn-cu12", "nvidia-cudnn-cu13", "nvidia-cudnn-frontend"),
    *("nvidia-cublas", "nvidia-cublas-cu12"),
)


def key_of(name: str, device: str, case: Case | None = None) -> str:
    """The key under which a certificate made here and now would be found."""
    return key(name, code(name), case, device_name(device), software(name, device))


@cache
def code(name: str) -> str:
    """SHA-256 over the backend's source files, and over the rules it was held to with all that they import.

    A backend consists of its module and what that imports, found by reading it, except for packages with
    their own version, which `software` records. A backend from an entry point may be a package with compiled
    parts: then everything in its folder counts.
    """
    files = set(_HERE.glob("*.py")) | _files("model.training.certify") | _files("model.attention.math")
    files |= _files(_module(name))
    files |= {path for module in attention.load(name).modules if (path := _origin(module))}
    if backends.is_foreign(name):
        package = _source(_module(name).partition(".")[0])
        if package and package.name == "__init__.py":
            files |= {path for path in package.parent.rglob("*") if path.suffix in _SOURCES}

    digest = hashlib.sha256()
    for path in sorted(files):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


_SOURCES = {".py", ".so", ".cu", ".cuh", ".cpp", ".c", ".h", ".hpp", ".ptx", ".cubin"}


def _module(name: str) -> str:
    """The module that defines the backend."""
    return backends.entry_module(name) if backends.is_foreign(name) else f"model.attention.{name}"


def _files(module: str) -> set[Path]:
    return set(_imported(module).values())


def device_name(device: str) -> str | None:
    """The device's name as an attempt's manifest has it; None if there is no GPU."""
    import torch

    if device == "cuda" and not torch.cuda.is_available():
        return None
    return machine.device(device)[0]


@cache
def software(name: str, device: str) -> dict[str, str]:
    """Versions of the packages that every attempt records, and of the backend's own modules.

    With the environment variables by which the same versions compute other numbers.
    """
    import torch

    versions = machine.versions() | machine.settings()
    if device == "cuda" and torch.cuda.is_available():
        versions |= machine.device(device)[2] | machine.versions(_CUDA_LIBRARIES)
    own = {*attention.load(name).modules}
    if backends.is_foreign(name):  # with all that its own code imports, also from other packages
        own.add(_module(name))
        for module, path in _imported(_module(name)).items():
            own.update(_named(module, path))
    versions |= machine.versions(package for module in own for package in _distributions(module))
    # Modules of no package, such as one that was built by hand, with a hash of their file.
    for module in attention.load(name).modules:
        if not _distributions(module) and (origin := _origin(module)):
            digest = hashlib.sha256(origin.read_bytes()).hexdigest()
            versions[module] = f"without a version, SHA-256 {digest[:12]}"
    return dict(sorted(versions.items()))


@cache
def _imported(module: str) -> dict[str, Path]:
    """Files by module name: the module, and all of its own that it imports, also inside functions."""
    files: dict[str, Path] = {}
    waiting = [module]
    while waiting:
        name = waiting.pop()
        if name in files or not _is_own(name, module) or (path := _source(name)) is None:
            continue
        files[name] = path
        waiting += _named(name, path)
    return files


def _is_own(name: str, module: str) -> bool:
    """Whether a module belongs to the same distribution as another, or to none, like a file beside it."""
    top, home = name.partition(".")[0], module.partition(".")[0]
    if top == home:
        return True
    if home == "model" or top in sys.stdlib_module_names:
        return False
    return not _distributions(top) or bool({*_distributions(top)} & {*_distributions(home)})


def _named(module: str, path: Path) -> list[str]:
    """The imports of a module, its own packages included: importing `a.b` also runs `a/__init__.py`."""
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    names = []
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            start = ".".join([*base, *([node.module] if node.module else [])])
            names += [start, *(f"{start}.{alias.name}" for alias in node.names)]
    return names


@cache
def _distributions(module: str) -> tuple[str, ...]:
    return tuple(_packages().get(module.partition(".")[0], ()))


_packages = cache(packages_distributions)  # reads the metadata of all that is installed


@cache
def _source(module: str) -> Path | None:
    """A module's Python file, without importing it."""
    if module.partition(".")[0] == "model":
        path = _PROJECT.joinpath(*module.split("."))
        choices = (path.with_suffix(".py"), path / "__init__.py")
        return next((choice for choice in choices if choice.is_file()), None)
    path_or_none = _origin(module)
    return path_or_none if path_or_none and path_or_none.suffix == ".py" else None


def _origin(module: str) -> Path | None:
    """A module's file, without importing it."""
    try:
        spec = find_spec(module)
    except Exception:  # it imports the package around the module, which may raise anything
        return None
    return Path(spec.origin) if spec and spec.origin and Path(spec.origin).is_file() else None
