"""What the tests that inject faults share."""

import json

import pytest


@pytest.fixture
def slurm(runner, cluster):
    """The command line with a cluster in reach."""
    return lambda *arguments, rc=None, **env: runner(*arguments, rc=rc, **{**cluster, **env})


@pytest.fixture
def rows():
    """Where the runs stand, as `status --json` says it."""
    return lambda command: json.loads(command("status", "--json", rc=0).stdout)
