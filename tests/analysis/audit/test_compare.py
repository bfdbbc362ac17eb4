"""How one file of a report is compared with what its records give."""

from __future__ import annotations

from pathlib import Path

from analysis.audit.compare import compare_files
from analysis.audit.finding import Alike, Compared, rounds_alike

TICKS = '<svg xmlns="http://www.w3.org/2000/svg"><g aria-label="{}"><text>{}</text></g></svg>'


def compared(folder: Path, alike: Alike) -> Compared:
    for name, tick in (("a", "10,400"), ("b", "10,600")):
        (folder / name).mkdir()
        (folder / name / "x.svg").write_text(TICKS.format(tick, tick))
    return compare_files(folder / "a", folder / "b", "x.svg", alike)


def test_the_axes_of_a_drawing_by_other_code_are_its_own(tmp_path: Path) -> None:
    found = compared(tmp_path, Alike(code=False, altair=True, renderer=True))
    assert (found.findings, found.numbers, found.skipped) == ([], 0, found.skipped)
    assert found.skipped > 0


def test_the_axes_of_a_drawing_by_the_same_code_are_compared(tmp_path: Path) -> None:
    found = compared(tmp_path, Alike(code=True, altair=True, renderer=False))
    assert "it says 10,400, the records give 10,600" in str(found.findings[0])


def test_numbers_are_alike_as_far_as_both_are_written_out() -> None:
    assert rounds_alike(["1.2", "3"], ["1.23", "3"])
    assert not rounds_alike(["1.2"], ["1.26"])
    assert not rounds_alike(["1e76234"], ["3"]), "digits of a hash"
    assert not rounds_alike(["1e76234"], ["2e76234"])
