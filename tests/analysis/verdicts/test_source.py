"""The runs that a person names for a comparison."""

from pathlib import Path
from typing import Any

import pytest

from analysis.verdicts.source import StudySource, at_commit
from model.record.errors import UserError

pytestmark = pytest.mark.refused


@pytest.mark.parametrize(
    ("shas", "message"),
    [
        ([None, None], r"at commit 'feed' \(no run of it has a recorded commit\)"),
        ([None, "a" * 40], r"at commit 'feed' \(valid: aaaaaaaaaaaa\)"),
    ],
)
def test_a_commit_of_no_run_is_refused_with_those_that_there_are(shas: list[Any], message: str) -> None:
    source = StudySource("s@feed", Path("runs"), "s", "feed")
    with pytest.raises(UserError, match=message):
        at_commit([{"git_sha": sha} for sha in shas], source)
