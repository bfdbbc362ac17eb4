"""The surroundings of a call: the settings of the process, and the memory that the call gets."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from model.attention import Backend, Case
from model.attention.verify.call import Subject
from model.attention.verify.certificate import Check
from model.attention.verify.reference import matmul_precision

# More blocks of each size than a call needs for copies of its inputs, results, gradients and workspaces.
_BLOCKS = 16
_aten = torch.ops.aten
_EMPTY = {_aten.empty, _aten.empty_like, _aten.empty_strided, _aten.new_empty, _aten.new_empty_strided}


def settings() -> dict[str, Any]:
    """The settings that kernels are tempted to change, by name."""
    cuda = torch.backends.cuda
    return {
        "gradient mode": torch.is_grad_enabled(),
        "the default dtype": torch.get_default_dtype(),
        "the number of threads": torch.get_num_threads(),
        "float32 matmul precision": matmul_precision(),
        "determinism": torch.are_deterministic_algorithms_enabled(),
        "SDPA's kernels": (
            cuda.flash_sdp_enabled(),
            cuda.mem_efficient_sdp_enabled(),
            cuda.math_sdp_enabled(),
            cuda.cudnn_sdp_enabled(),
        ),
    }


def with_state(device: str) -> dict[str, Any]:
    """The settings, and what every random number and every kernel launch changes."""
    state = settings() | {"the random state": torch.get_rng_state()}
    if device == "cuda":
        state["the GPU's random state"] = torch.cuda.get_rng_state()
        state["the current stream"] = torch.cuda.current_stream()
    return state


def check(backend: Backend, case: Case, before: dict[str, Any]) -> list[Check]:
    """Whether the settings are what they were before the first call of the trial."""
    subject = Subject(backend, case, "after all calls")
    note_changes(subject, before, settings())
    return subject.checks


def note_changes(subject: Subject, before: dict[str, Any], after: dict[str, Any]) -> None:
    """Add a check for each setting."""
    for name, value in after.items():
        same = torch.equal(value, before[name]) if isinstance(value, Tensor) else value == before[name]
        subject.note("settings unchanged", name, same, f"a call changed {name} of the whole process")


# What a run has loaded too, to look for its certificate.
_LOADED_IN_RUNS = {"model.attention.verify.certificate", "model.attention.verify.identity"}


@contextmanager
def hidden() -> Iterator[None]:
    """Hide the modules of this folder: what the body calls must not see that it is on trial."""
    package = vars(sys.modules["model.attention.verify"])
    names = [
        name
        for name in sys.modules
        if name.startswith("model.attention.verify.") and name not in _LOADED_IN_RUNS
    ]
    modules = {name: sys.modules.pop(name) for name in names}
    attributes = {name.rpartition(".")[2]: module for name, module in modules.items()}
    for name in attributes:
        package.pop(name, None)
    try:
        yield
    finally:
        sys.modules.update(modules)
        package.update(attributes)


@contextmanager
def poisoned(q_BTHD: Tensor, k_BTKD: Tensor) -> Iterator[None]:
    """Fill the memory that the body's calls allocate with NaN, as far as possible from outside.

    On a GPU, PyTorch's allocator has nothing left to hand out but blocks full of NaN, of the sizes that
    attention on these tensors needs. On a CPU, where `malloc` promises nothing, each tensor that PyTorch
    makes without writing it is filled too.
    """
    widths = (1, 2, 4) if q_BTHD.element_size() == 1 else (2, 4)
    sizes = [x.numel() * width for x in (q_BTHD, k_BTKD) for width in widths] + [q_BTHD[..., 0].numel() * 4]
    if q_BTHD.is_cuda:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
    blocks = [torch.full((size,), 255, dtype=torch.uint8, device=q_BTHD.device) for size in sizes * _BLOCKS]
    del blocks  # all bits set is NaN in every precision
    with nullcontext() if q_BTHD.is_cuda else _Filled():
        yield


class _Filled(TorchDispatchMode):
    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # to skip Dynamo means to import it, which takes seconds

    def __torch_dispatch__(
        self, func: Any, _types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        made = func(*args, **(kwargs or {}))
        if func.overloadpacket in _EMPTY and made.is_floating_point():
            made.fill_(torch.nan)
        return made
