"""Small studies from records written by hand, with their reports, built once."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from analysis.importers import ImportDesign, Mapping, Origin, write_runs
from analysis.importers import read as read_log
from analysis.report.answer.statement import Sentence
from analysis.report.build import build_report
from analysis.store.collect import collect
from tests.oracle import frontiers, records  # noqa: F401  `frontiers` adds its kinds
from tests.oracle.pages import Element, read
from tests.oracle.truth import Study

NAMES = (
    "ends", "pair", "ramp", "margins", "scaling", "disturbed", "grown", "moved", "waiting", "prompts", "profiled", "calls", "shapes",
    "alone", "swept", "watched", "sought", "planned", "saved", "places", "tiled", "eight", "options", "theirs", "endless",
)  # fmt: skip
IMPORTED = ("theirs", "endless")


def import_logs(root: Path, logs: Path, mapping: dict[str, object]) -> None:
    """As `runner import` does it, without a baseline."""
    origin = Origin("csv", logs.name, "Logs", "0.1.0", datetime(2026, 3, 1, tzinfo=UTC))
    log_mapping = Mapping.model_validate(mapping)
    runs = [run for file in sorted(logs.iterdir()) for run in read_log(file, log_mapping, origin)]
    write_runs(root, logs.name, runs, ImportDesign({"loss": 0.02}))


class Built:
    """The root of all studies, and their pages."""

    def __init__(self, root: Path, out: Path) -> None:
        self.root, self.out = root, out
        records.write(root)
        self.studies = {name: Study(root / name) for name in NAMES if name not in IMPORTED}
        for name in IMPORTED:
            logs = out / "logs" / name
            mapping = records.logs(logs)
            import_logs(root, logs, mapping)
            self.studies[name] = Study(logs, mapping)
        collect(root)
        self._pages: dict[tuple[str, str], Element] = {}
        self.places: set[tuple[str, int]] = set()  # of the code that made a sentence: file and line
        original_init = Sentence.__init__

        def record_place(sentence: Sentence, *arguments: Any, **options: Any) -> None:
            frame = sys._getframe(1)
            self.places.add((Path(frame.f_code.co_filename).name, frame.f_lineno))
            original_init(sentence, *arguments, **options)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Sentence, "__init__", record_place)
            for name in NAMES:
                build_report(root, name, out / name)

    def page(self, study: str, page: str) -> Element:
        """A page of a study's report, read once."""
        if (study, page) not in self._pages:
            self._pages[study, page] = read(self.out / study / f"{page}.html")
        return self._pages[study, page]


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """All studies, collected, with their reports."""
    return Built(tmp_path_factory.mktemp("oracle"), tmp_path_factory.mktemp("reports"))
