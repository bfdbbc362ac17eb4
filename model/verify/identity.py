"""What a certificate is about: which code, which software, which device."""

from __future__ import annotations

import ast
import hashlib
import inspect
from functools import cache
from importlib.metadata import PackageNotFoundError, packages_distributions, version
from importlib.util import find_spec
from pathlib import Path

from model import attention, machine
from model.attention import Backend, Case
from model.verify.certificate import key

_HERE = Path(__file__).parent
_PROJECT = _HERE.parent.parent
_KERNEL_LIBRARIES = {
    "cuda": ("nvidia-cudnn-cu12", "nvidia-cudnn-cu13", "nvidia-cublas", "nvidia-cublas-cu12")
}


def key_of(name: str, device: str, case: Case | None = None) -> str:
    """The key under which a certificate made here and now would be found."""
    return key(name, code(name), case, device_name(device), software(name, device))


@cache
def code(name: str) -> str:
    """SHA-256 over the backend's source files, those of its modules, and the rules in this folder.

    A backend in this project consists of its file and what that imports from this project, found by reading
    it. One from an entry point consists of the folder that its module is in.
    """
    backend = attention.load(name)
    rules = set(_HERE.glob("*.py"))
    own = _folder(backend) if attention.is_foreign(name) else _imported(f"model.attention.{name}")
    digest = hashlib.sha256()
    for path in sorted(rules | own | set(filter(None, map(_origin, backend.modules)))):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def device_name(device: str) -> str | None:
    """As in an attempt's manifest; None if there is no GPU."""
    import torch

    if device == "cuda" and not torch.cuda.is_available():
        return None
    return machine.device(device)[0]


@cache
def software(name: str, device: str) -> dict[str, str]:
    """Version by package: those that every attempt records, and the backend's own modules."""
    import torch

    known = machine.versions()
    if device == "cuda" and torch.cuda.is_available():
        known |= machine.device(device)[2] | _installed(_KERNEL_LIBRARIES["cuda"])
    own = {x.partition(".")[0] for x in (*attention.load(name).modules, *_foreign_modules(name))}
    distributions = packages_distributions() if own else {}
    known |= _installed(tuple(package for module in own for package in distributions.get(module, ())))
    return dict(sorted(known.items()))


def _installed(packages: tuple[str, ...]) -> dict[str, str]:
    found = {}
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def _foreign_modules(name: str) -> tuple[str, ...]:
    if not attention.is_foreign(name):
        return ()
    return (getattr(attention.load(name).attend, "__module__", "") or "",)


def _imported(module: str) -> set[Path]:
    """A module and everything that it imports from this project, inside functions too."""
    found: dict[str, Path] = {}
    waiting = [module]
    while waiting:
        name = waiting.pop()
        path = _source(name)
        if path is None or name in found:
            continue
        found[name] = path
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("model"):
                waiting += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
            elif isinstance(node, ast.Import):
                waiting += [alias.name for alias in node.names if alias.name.startswith("model.")]
    return set(found.values())


def _source(module: str) -> Path | None:
    path = _PROJECT.joinpath(*module.split("."))
    choices = (path.with_suffix(".py"), path / "__init__.py")
    return next((choice for choice in choices if choice.is_file()), None)


def _folder(backend: Backend) -> set[Path]:
    """The files beside the one that defines `attend`; for a single module, that file alone."""
    try:
        path = Path(inspect.getfile(inspect.unwrap(backend.attend)))
    except TypeError:  # compiled code: its package's version identifies it
        return set()
    if not (path.parent / "__init__.py").exists():
        return {path}
    return {each for pattern in ("*.py", "*.so") for each in path.parent.rglob(pattern)}


def _origin(module: str) -> Path | None:
    """A module's file, without importing it."""
    try:
        spec = find_spec(module)
    except (ImportError, ValueError):
        return None
    return Path(spec.origin) if spec and spec.origin and Path(spec.origin).is_file() else None
