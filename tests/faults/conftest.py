"""Counts the faults that were injected and what became of them, and prints the tally."""

import json
import time

import pytest

_tally: dict[str, str] = {}


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    outcome = yield
    report = outcome.get_result()
    if "tests/faults/" in report.nodeid and (report.when == "call" or report.skipped):
        _tally[report.nodeid] = report.outcome


def pytest_terminal_summary(terminalreporter):
    if _tally:
        words = list(_tally.values())
        tried = len(words) - words.count("skipped")
        terminalreporter.section("faults")
        terminalreporter.line(
            f"tried {tried}, survived {words.count('passed')}, not tried here {words.count('skipped')}"
        )


@pytest.fixture
def slurm(runner, cluster):
    """The command line with a cluster in reach."""
    return lambda *arguments, rc=None, **env: runner(*arguments, rc=rc, **{**cluster, **env})


@pytest.fixture
def rows():
    """Where the runs stand, as `status --json` says it."""
    return lambda command: json.loads(command("status", "--json", rc=0).stdout)


@pytest.fixture
def until():
    def wait(condition, seconds=120):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if result := condition():
                return result
            time.sleep(0.3)
        pytest.fail("it did not happen in time")

    return wait
