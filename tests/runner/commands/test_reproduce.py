"""A repeat of a run that trains nothing is compared by the tokens that it decodes."""

import pytest

from model.disk.folder import RunFolder
from runner.commands.reproduce import compare
from runner.state import ledger
from tests.analysis.fabricate import inferred


def state(root, **options):
    return ledger.state(RunFolder(inferred(root, "flash", **options).path))


def test_tokens_that_are_the_same_are_said_to_be(tmp_path):
    found = compare(state(tmp_path / "a"), state(tmp_path / "b"))
    assert "the tokens of 4 decoded positions are the same" in found.verdict
    assert "loss" not in found.verdict


def test_the_first_position_that_differs_is_named(tmp_path):
    then, now = state(tmp_path / "a"), state(tmp_path / "b")
    path = now.latest.path / "decode.jsonl"
    path.write_text(path.read_text().replace("[7,2]", "[7,3]"))
    assert "the tokens of 1 of 4 decoded positions differ, from the 3. on" in compare(then, now).verdict


@pytest.mark.fault
def test_where_nothing_was_decoded_nothing_is_claimed(tmp_path):
    then, now = (state(tmp_path / each, decode_seconds=None) for each in "ab")
    assert "no decoded tokens to compare" in compare(then, now).verdict
