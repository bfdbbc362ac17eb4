"""No loop of a kernel copies a variable of the iteration before as it is: Triton 3.6 gives the copy another's value.

`last = head` in a loop that assigns `head` further down made `last` the new head, so that gradients of one
query head were added to the next one's rows. Only a GPU showed it (docs/kernel-log.md).
"""

import ast
from pathlib import Path

import pytest

import model.attention.kernels

FILES = sorted(Path(model.attention.kernels.__file__).parent.rglob("*.py"))


def copies(source):
    """Lines that copy, within a loop, a variable which that loop assigns only further down."""
    loops = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.For | ast.While))
    return sorted({line for loop in loops for line in _copies(loop)})


def _copies(loop):
    nodes = [node for statement in loop.body for node in ast.walk(statement)]
    assigned = {}  # a variable's lines
    for node in nodes:
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            assigned.setdefault(node.id, []).append(node.lineno)
    for node in nodes:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Name):
            lines = assigned.get(node.value.id, [])
            if lines and min(lines) >= node.lineno:
                yield node.lineno


FAULTY = """
def kernel(head, first, total):
    last = head
    for n in range(total):
        use(last)
        last = head
        if n % 2:
            head += 1
"""


@pytest.mark.fault
def test_a_copy_of_what_the_loop_changes_later_is_found():
    assert copies(FAULTY) == [6]
    assert copies(FAULTY.replace("last = head\n        if", "last = head + 0\n        if")) == []


def test_a_copy_of_what_the_iteration_has_computed_is_none_of_these():
    assert copies("for n in range(9):\n    new = f(old)\n    old = new\n") == []


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_no_kernel_copies_a_variable_of_the_iteration_before(file):
    assert copies(file.read_text()) == []
