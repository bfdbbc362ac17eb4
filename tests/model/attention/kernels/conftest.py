"""Triton's kernels run on the CPU too, in its interpreter, which tests/conftest.py chooses where there is no GPU."""

import os

import pytest
import torch


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request):
    """Where the kernels run. The interpreter rounds to float32 as a GPU does, and to 16 bits as none does."""
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("needs an NVIDIA GPU")
    if request.param == "cpu":
        pytest.importorskip("triton", reason="needs triton: pip install 'assay-studies[dev]'")
        if os.environ.get("TRITON_INTERPRET") != "1":
            pytest.skip("the kernels are compiled: this machine has a GPU")
    return request.param
