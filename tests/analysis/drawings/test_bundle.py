"""The script of pages: bundled once a user, and never in the way of a report."""

from __future__ import annotations

from pathlib import Path

import pytest
import vl_convert

from analysis import drawings
from analysis.drawings import bundle, draw


def test_it_is_bundled_once_a_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(vl_convert, "javascript_bundle", lambda **_: "made")
    assert bundle.script.__wrapped__() == "made"
    monkeypatch.setattr(vl_convert, "javascript_bundle", lambda **_: pytest.fail("bundled again"))
    assert bundle.script.__wrapped__() == "made"


@pytest.mark.fault
def test_a_cache_that_cannot_be_written_is_done_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr(vl_convert, "javascript_bundle", lambda **_: "made")
    assert bundle.script.__wrapped__() == "made"


def test_a_process_beside_bundles_what_this_one_would_and_it_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundled = drawings.script()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with drawings.drawer(tmp_path, 1) as drawer:
        script = drawer.script()
    assert script.result() == bundled
    assert bundle.kept() == bundled


def test_it_is_read_where_it_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(vl_convert, "javascript_bundle", lambda **_: "kept")
    bundle.bundled(draw.vega_version())
    with drawings.drawer(tmp_path, 1) as drawer:
        assert drawer.script().result() == "kept"
