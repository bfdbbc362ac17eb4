"""What the tests that inject faults share."""

import pytest

from tests.conftest import PACED
from tests.faults.daemons import Daemons


@pytest.fixture
def slurm(runner, cluster):
    """The command line with a cluster in reach, and runs that take their time."""
    return lambda *arguments, rc=None, **env: runner(*arguments, rc=rc, **{**cluster, **PACED, **env})


@pytest.fixture
def daemons(cluster):
    """The cluster's daemons; what a test takes away is given back."""
    return Daemons(cluster)
