"""The settings of the whole process, which a backend must not change."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from model.attention import Backend, Case
from model.verify.call import Subject
from model.verify.certificate import Check


def settings() -> dict[str, Any]:
    """The settings that kernels are tempted to change, by name."""
    cuda = torch.backends.cuda
    return {
        "gradient mode": torch.is_grad_enabled(),
        "the default dtype": torch.get_default_dtype(),
        "the number of threads": torch.get_num_threads(),
        "float32 matmul precision": torch.get_float32_matmul_precision(),
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
    found = settings() | {"the random state": torch.get_rng_state()}
    if device == "cuda":
        found["the GPU's random state"] = torch.cuda.get_rng_state()
        found["the current stream"] = torch.cuda.current_stream()
    return found


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
