"""The mark `gpu` skips a test where it could not run."""

from types import SimpleNamespace

import pytest
import torch

from tests.conftest import pytest_runtest_setup

ONE, TWO = pytest.mark.gpu.mark, pytest.mark.gpu(2).mark


@pytest.mark.parametrize(
    ("marks", "cuda", "available", "devices", "runs"),
    [
        ([], None, False, 0, True),
        ([ONE], "13.0", True, 1, True),
        ([ONE], "13.0", True, 0, False),
        ([ONE], "13.0", False, 1, False),  # devices are counted though their driver is too old
        ([ONE], None, True, 1, False),  # an AMD GPU
        ([TWO], "13.0", True, 1, False),
        ([TWO], "13.0", True, 2, True),
        ([ONE, TWO], "13.0", True, 1, False),
        ([TWO, ONE], "13.0", True, 1, False),
    ],
)
def test_a_test_runs_where_pytorch_can_use_as_many_nvidia_gpus(
    monkeypatch, marks, cuda, available, devices, runs
):
    monkeypatch.setattr(torch.version, "cuda", cuda)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: available)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: devices)
    item = SimpleNamespace(iter_markers=lambda name: marks)
    if runs:
        pytest_runtest_setup(item)
    else:
        with pytest.raises(pytest.skip.Exception, match=f"GPUs: {2 if TWO in marks else 1}"):
            pytest_runtest_setup(item)
