"""What the tests that inject faults share."""

import json
import time

import pytest


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
