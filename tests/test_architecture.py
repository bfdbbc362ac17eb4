"""docs/architecture.md says what is so."""

import ast
import importlib
import re

import pytest

from tests.conftest import REPOSITORY, together

PAGE = (REPOSITORY / "docs" / "architecture.md").read_text(encoding="utf-8")
ROOMS = dict(re.findall(r"^\| `([\w/]+)` \| (.+) \|$", PAGE, re.MULTILINE))
FUNCTIONS = re.findall(r"`([\w.]+:\w+)`", PAGE)


def packages():
    files = [
        path for name in ("runner", "analysis", "model") for path in (REPOSITORY / name).rglob("__init__.py")
    ]
    return {path.parent.relative_to(REPOSITORY).as_posix(): path for path in files}


def test_every_package_has_its_line_and_there_is_no_other():
    assert set(ROOMS) == set(packages()) - {"runner", "analysis", "model"}


@pytest.mark.parametrize("package", sorted(packages()))
def test_a_package_says_what_lives_there_in_the_words_of_the_page(package):
    docstring = ast.get_docstring(ast.parse(packages()[package].read_text(encoding="utf-8")))
    assert docstring
    if package in ROOMS:
        assert ROOMS[package] == docstring.partition("\n")[0]


@pytest.mark.parametrize("function", FUNCTIONS)
def test_every_function_on_the_way_of_the_data_is_there(function):
    module, name = function.split(":")
    assert callable(getattr(importlib.import_module(module), name))


def test_the_rooms_of_runner_stand_in_the_order_that_the_import_check_holds_them_to():
    import tomllib

    contracts = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["tool"]["importlinter"][
        "contracts"
    ]
    for package in ("runner", "analysis"):
        (layers,) = [contract["layers"] for contract in contracts if contract.get("containers") == [package]]
        rooms = [room.split("/")[1] for room in ROOMS if room.startswith(f"{package}/")]
        assert list(dict.fromkeys(rooms)) == [layer for layer in layers if f"{package}/{layer}" in ROOMS]


def test_tests_that_share_a_browser_or_a_report_go_to_one_worker():
    files = (REPOSITORY / "tests" / "browser").glob("test_*.py")
    browser = [f"tests/browser/{path.name}::test_a[1]" for path in files]
    assert {together(nodeid) for nodeid in browser} == {"tests/browser/"}
    assert together("tests/model/attention/verify/test_fp8.py::test_a") == "tests/model/attention/"
    assert together("tests/model/training/test_step.py::test_a") == "tests/model/"
    assert together("tests/runner/cli/test_cli.py::test_a[x::y]") == "tests/runner/cli/test_cli.py"
    assert together("tests/slurm/test_cluster.py::test_a") == "tests/slurm/test_cluster.py::test_a"


def test_no_file_but_a_tasks_own_asks_for_a_task_by_name():
    """What follows from a task is in its files; others ask for that: `trains`, `compares_backends`."""
    from model.record.tasks import TASKS

    task_folders = [REPOSITORY / folder for folder in re.findall(r"`([\w/]+/tasks)/NAME\.py`", PAGE)]
    assert len(task_folders) == 3
    files = [path for name in ("runner", "analysis", "model") for path in (REPOSITORY / name).rglob("*.py")]
    askers = []
    for path in files:
        if path.parent not in task_folders:
            for node in ast.walk(ast.parse(path.read_bytes())):
                asks = names_a_task(node, set(TASKS))
                askers += [f"{path.relative_to(REPOSITORY)}:{node.lineno}"] if asks else []
    assert askers == []
    branch = ast.parse(
        'run["task"] == "training" or tasks <= {"attention"} or "attention" == key or task != other'
    )
    assert [names_a_task(node, set(TASKS)) for node in branch.body[0].value.values] == [
        True,
        True,
        False,
        False,
    ]


def names_a_task(node, tasks):
    """Whether it compares what is called a task, or tasks, with the name of one."""
    if not isinstance(node, ast.Compare):
        return False
    names = {part.value for part in ast.walk(node) if isinstance(part, ast.Constant)}
    return bool(names & tasks) and re.search(r"\btasks?\b", ast.unparse(node)) is not None
