"""What errors say: a refusal of numbers that do not go together names those that would."""

import pytest
from pydantic import ValidationError

from model.record.config import RunConfig
from model.record.errors import one_line
from model.record.sections import nearest_multiples
from tests.model.conftest import run_config


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("batch", 8, {"shard": 3}), "2 or 4 would do for shard, 6 or 9 would do for batch"),
        (("batch", 8, {"shard": 16}), "8 would do for shard, 16 would do for batch"),
        (("batch", 7, {"shard": 4, "parts": 2}), "7 would do for shard x parts, 8 would do for batch"),
        (("length", 60, {"context": 4}, 2), "3 or 5 would do for context, 56 or 64 would do for length"),
        (("length", 65, {"context": 4}, 2), "64 or 72 would do for length"),
        (("batch", 2**31 - 2, {"shard": 2**31 - 1}), "2147483646 would do for shard, 2147483647 would do for batch"),
    ],
)  # fmt: skip
def test_the_nearest_numbers_are_named_on_either_side(arguments, expected):
    assert nearest_multiples(*arguments) == expected


@pytest.mark.refused
def test_a_batch_that_processes_cannot_share_names_what_they_could():
    parts = run_config("math", batch_size=8).model_dump()
    message = (
        "train.batch_size 8 is not a multiple of parallel.shard 3: 2 or 4 would do for parallel.shard, 6 or 9"
    )
    with pytest.raises(ValidationError, match=message):
        RunConfig.model_validate({**parts, "parallel": {"shard": 3}})


def test_an_exception_is_told_in_one_line_which_shows_where_it_was_cut():
    assert one_line(RuntimeError("out of\n  memory")) == "RuntimeError: out of memory"
    assert one_line(KeyError()) == "KeyError"
    assert one_line(ValueError("a word " * 9), most=20) == "ValueError: a word a word a ..."
