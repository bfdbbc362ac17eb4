"""A run has one name, which every command takes and which messages print."""

import os

import pytest

from model.record.errors import UserError
from runner.state.runs import find, last_step, name_of, states
from tests.analysis.fabricate import Folder, plan


@pytest.fixture
def two_studies(tmp_path):
    """A root from before rehearsals had their own ids."""
    for study in ("tiny", "tiny.rehearsal"):
        Folder(tmp_path, plan("abc123", study=study))
    Folder(tmp_path, plan("abd456", study="tiny"))
    return tmp_path


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("abd", "tiny/abd456"),
        ("tiny/abc123", "tiny/abc123"),
        ("tiny/abc", "tiny/abc123"),
        ("tiny.rehearsal/a", "tiny.rehearsal/abc123"),
    ],
)
def test_a_run_is_found_by_the_shortest_name_that_no_other_has(two_studies, text, name):
    assert name_of(find(two_studies, text)) == name


@pytest.mark.refused
def test_an_ambiguous_name_is_answered_with_names_that_can_be_typed(two_studies):
    with pytest.raises(UserError, match="'abc123' is the start of 2 runs") as error:
        find(two_studies, "abc123")
    for state in states(two_studies):
        assert (name_of(state) in str(error.value)) == (state.brief.run_id == "abc123")
        assert find(two_studies, name_of(state)).folder.path == state.folder.path


@pytest.mark.refused
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tin/abc", "no runs of study 'tin' .*did you mean 'tiny'"),
        ("../tiny/abc", "no runs of study"),
        ("/abc", "no runs of study ''"),
        ("tiny/x", "no run 'tiny/x'"),
        ("x", "no run 'x'"),
        ("tiny", "'tiny' is a study; name one of its runs, which `runner status tiny` lists"),
    ],
)
def test_a_name_that_no_run_has_is_refused(two_studies, text, message):
    with pytest.raises(UserError, match=message):
        find(two_studies, text)


@pytest.mark.refused
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tniy", "no study or run 'tniy' under ROOT (did you mean 'tiny'? valid studies: other, tiny)"),
        ("abd457", "no study or run 'abd457' under ROOT (did you mean 'tiny/abd456'? valid studies: other, tiny)"),
        ("none", "no study or run 'none' under ROOT (valid studies: other, tiny)"),
        ("tiny/x", "no run 'tiny/x' under ROOT"),
    ],
)  # fmt: skip
def test_where_a_study_can_be_named_too_the_studies_are_listed(two_studies, text, message):
    with pytest.raises(UserError) as error:
        find(two_studies, text, studies=["other", "tiny"])
    assert str(error.value) == f"{message.replace('ROOT', str(two_studies))}; list them with `runner status`"


@pytest.mark.refused
def test_many_matches_are_not_all_listed(tmp_path):
    for number in range(20):
        Folder(tmp_path, plan(f"a{number:02}"))
    with pytest.raises(UserError, match=r"start of 20 runs: .*backends/a07 and 12 more; type more of one$"):
        find(tmp_path, "a")


@pytest.mark.refused
@pytest.mark.parametrize("text", ["", " ", "backends/"])
def test_an_empty_name_is_not_the_prefix_of_the_only_run(tmp_path, text):
    """`runner cancel "$RUN"` would cancel it where RUN is not set."""
    Folder(tmp_path, plan("abc123"))
    with pytest.raises(UserError, match="names no run; list them with `runner status`"):
        find(tmp_path, text)


@pytest.mark.fault
@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir], ids=["pipe", "folder"])
def test_what_is_no_file_in_the_place_of_step_records_is_not_waited_for(tmp_path, make):
    """In a root that a team shares it may be anybody's."""
    folder = Folder(tmp_path, plan("r1"))
    make(folder.start() / "steps.jsonl")
    (state,) = states(tmp_path)
    assert last_step(state) is None


@pytest.mark.parametrize("torn", [b"", b"\0" * 3000 + b"\n", b'{"step": 15, "steps": 5, "lo\n\n'])
def test_the_newest_step_is_found_before_what_a_crash_tore_whatever_its_length(tmp_path, torn):
    folder = Folder(tmp_path, plan("short"))
    path = folder.start() / "steps.jsonl"
    (state,) = states(tmp_path)
    assert last_step(state) is None
    for step in (5, 10):
        folder.step(step)
    with path.open("ab") as file:
        file.write(torn)
    newest = last_step(state)
    assert newest and newest.step == 10
