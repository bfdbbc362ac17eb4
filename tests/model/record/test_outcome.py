"""All that is known of an outcome stands in its entry: a new one needs no other, but for the pages that list it."""

import ast
import re

import pytest

from model.record.outcome import Outcome
from tests.conftest import REPOSITORY

MODULES = [path for name in ("runner", "analysis", "model") for path in (REPOSITORY / name).rglob("*.py")]


def _outcome(node):
    """The outcome that an expression names, by its member or by its word."""
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "Outcome":
        return node.attr
    return node.value if isinstance(node, ast.Constant) and node.value in [*Outcome] else None


@pytest.mark.parametrize("outcome", Outcome)
def test_an_outcome_has_a_meaning_a_cause_and_a_short_word(outcome):
    assert outcome.meaning
    assert (outcome.cause is None) is (outcome is Outcome.COMPLETED)
    assert re.fullmatch("[a-z ]+|OOM", outcome.short)


def test_no_state_of_slurm_means_two_outcomes():
    states = [state for outcome in Outcome for state in outcome.slurm_states]
    assert len(set(states)) == len(states)


@pytest.mark.parametrize(
    ("outcome", "of_machine", "taken"),
    [
        (Outcome.NODE_FAILED, True, True), (Outcome.PREEMPTED, True, True), (Outcome.LOST, True, False),
        (Outcome.TIMEOUT, False, False), (Outcome.CANCELLED, False, False), (Outcome.FAILED, False, False),
        (Outcome.OOM_GPU, False, False), (Outcome.COMPLETED, False, False),
    ],
)  # fmt: skip
def test_a_run_that_lost_its_machine_or_left_no_trace_had_no_part_in_that(outcome, of_machine, taken):
    assert (outcome.of_machine, outcome.is_taken) == (of_machine, taken)


def test_no_other_module_lists_outcomes():
    """It asks for what they have in common instead. `Ending` in model/record/kernels.py is a type of its own."""
    places = []
    for path in MODULES:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        types = {id(node.slice) for node in ast.walk(tree) if isinstance(node, ast.Subscript)}
        for node in ast.walk(tree):
            parts = node.keys if isinstance(node, ast.Dict) else getattr(node, "elts", [])
            if len({_outcome(part) for part in parts} - {None}) > 1 and id(node) not in types:
                places.append(f"{path.relative_to(REPOSITORY)}:{node.lineno}")
    assert [place for place in places if not place.startswith("model/record/outcome.py")] == []


def test_the_page_on_comparing_names_the_outcomes_that_code_can_be_blamed_for():
    page = (REPOSITORY / "docs" / "comparing.md").read_text(encoding="utf-8")
    (listing,) = re.findall(r"ended in a way that is bad \(([^)]+)\)", page)
    assert listing == ", ".join(f"`{outcome}`" for outcome in Outcome if outcome.cause == "code")


def test_the_page_on_orchestration_names_the_outcomes_that_are_retried():
    page = (REPOSITORY / "docs" / "orchestration.md").read_text(encoding="utf-8")
    (listing,) = re.findall(r"a run ended without a part in it \(([^)]+)\)", page)
    assert listing == ", ".join(f"`{outcome}`" for outcome in Outcome if outcome.of_machine)
