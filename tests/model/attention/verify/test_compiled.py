"""What torch.compile makes of a backend, and whose words say why its graph ends there."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from tests.model.attention.verify import planted
from tests.model.attention.verify.planted import CASE


@pytest.fixture
def compiled() -> Any:
    """The module under test. It imports the compiler, which takes seconds of whatever process collects it."""
    from model.attention.verify import compiled

    return compiled


WORDS = "its kernels are made at the first call"


def disabled_by_itself():
    return replace(planted.right_backend, attend=torch.compiler.disable(planted.right, reason=WORDS))


def disabled_by_its_declaration():
    return replace(planted.right_backend, graph_break=lambda: WORDS)


@pytest.mark.parametrize("make", [disabled_by_itself, disabled_by_its_declaration])
def test_a_backend_that_stays_out_of_graphs_says_why(make, compiled) -> None:
    checks, reason = compiled.check(make(), CASE)
    assert reason == WORDS
    assert any(check.name == "right when compiled" for check in checks)
    assert all(check.passed for check in checks)


def test_a_backend_that_says_nothing_is_traced_whole(compiled) -> None:
    checks, reason = compiled.check(planted.right_backend, CASE)
    assert reason == ""
    assert all(check.passed for check in checks)


def test_shapes_that_were_checked_before_do_not_make_sizes_variable(compiled) -> None:
    """A run has one shape; Dynamo makes a size variable once it has seen two at the same line of code."""
    symbolic = []

    def attend(q, k, v, causal):
        symbolic.append(isinstance(q.shape[1], torch.SymInt))
        return planted.right(q, k, v, causal)

    backend = replace(planted.right_backend, attend=torch.compiler.allow_in_graph(attend))
    for length in (64, 96, 128):
        checks, _ = compiled.check(backend, replace(CASE, sequence_length=length))
        assert all(check.passed for check in checks), [check.reason for check in checks]
    assert symbolic
    assert not any(symbolic)
