"""The page for paper: all of a report once, figures as images, and where it was measured once, at the end."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from analysis.report.build import build_report
from analysis.store.collect import collect
from model.record.outcome import Outcome
from tests.analysis.fabricate import Folder, plan
from tests.analysis.report.test_build import Page, words


def test_every_figure_is_there_once_as_an_image_and_no_script_draws(demo_report: Path) -> None:
    page = Page(demo_report / "print.html")
    images = [attributes["src"] for tag, attributes in page.tags if tag == "img"]
    assert sorted(images) == sorted(f"figures/{path.name}" for path in demo_report.glob("figures/*.svg"))
    assert not [attributes for tag, attributes in page.tags if tag == "script" and "type" in attributes]


def test_it_has_the_answer_the_tables_and_the_methods(demo_report: Path) -> None:
    anchors = Page(demo_report / "print.html").all("id")
    for part in ("groups", "limits", "setup", "backends", "losses", "ranking", "verdicts", "runs", "rates"):
        assert part in anchors, part


def test_where_it_was_measured_is_said_once_at_the_end(demo_report: Path) -> None:
    text = words(demo_report / "print.html")
    assert text.count("Software driver 570.86, python 3.11.7, torch 2.13.0") == 1
    assert text.index("Provenance Device NVIDIA H200") > text.index("Outcomes A run is completed")
    captions = re.findall(r"<figcaption>.*?</figcaption>", (demo_report / "print.html").read_text(), re.S)
    assert len(captions) >= 10
    assert not any("Commit:" in caption for caption in captions)


@pytest.mark.parametrize("outcome", ["oom_gpu", None], ids=["all out of memory", "nothing has started"])
def test_a_study_without_a_number_still_has_every_page(
    root: Path, tmp_path: Path, outcome: str | None
) -> None:
    for place, backend in enumerate(("auto", "flash")):
        folder = Folder(root, plan(f"r{place}", attention=backend, expected_outcome=Outcome.OOM_GPU))
        if outcome:
            folder.start()
            folder.end(outcome, steps=0, final_loss=None, reason="no memory", requested_bytes=2**31)
    collect(root)
    out = build_report(root, "backends", tmp_path / "out").parent
    assert '<figure class="static">' not in (out / "print.html").read_text(), "a figure of nothing"
    headings = re.findall(r"<h2[^>]*>(.*?)</h2>", (out / "print.html").read_text())
    assert len(headings) == len(set(headings)), "two landmarks of one name"
    phrase = "oom_gpu as expected" if outcome else "not started"
    assert phrase in words(out / "run-r0.html")
    assert phrase in words(out / "runs.html")
