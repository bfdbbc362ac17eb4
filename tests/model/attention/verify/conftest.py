"""Backends that are known by name for one test, and numbers that are kept between trials."""

from pathlib import Path

import pytest
import torch

from model import attention
from model.attention.verify import data
from model.record import backends


@pytest.fixture(autouse=True, scope="package")
def numbers_are_kept():
    """A gate frees its memory afterwards, but sixty of them in a row need the same numbers."""
    data.solution.cache_clear, clear = (lambda: None), data.solution.cache_clear
    yield
    del data.solution.cache_clear
    clear()


@pytest.fixture
def registered(tmp_path, monkeypatch):
    """Registers entry points as an installed package would."""

    def register(points: dict[str, str], path: Path = tmp_path) -> None:
        info = tmp_path / "planted-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: planted\nVersion: 1.0\n")
        lines = [f"{name} = {target}" for name, target in points.items()]
        (info / "entry_points.txt").write_text("\n".join(["[assay.attention]", *lines]))
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.syspath_prepend(path)
        _forget()

    yield register
    monkeypatch.undo()
    _forget()


def _forget() -> None:
    for cached in (backends.names, attention.load, backends.foreign):
        cached.cache_clear()


@pytest.fixture
def by_inductor(monkeypatch):
    """Lists what inductor was asked to compile, for which it takes half a minute of a C++ compiler's time.

    The graph is run by PyTorch's operators instead. `pytest -m gpu` has inductor compile it.
    """
    functions, compile_ = [], torch.compile

    def compile_eagerly(function, **options):
        if options.get("backend") == "inductor":
            functions.append(function)
            options["backend"] = "aot_eager"
        return compile_(function, **options)

    monkeypatch.setattr(torch, "compile", compile_eagerly)
    return functions
