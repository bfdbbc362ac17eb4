"""One backend's forward and backward on the same tensors, called eagerly or replayed from CUDA graphs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from model import attention
from model.attention import Backend, Case, Fp8
from model.attention._fp8 import Quantised, quantised


class TimedInputs:
    """Q, K, V and the gradient of the output, in memory that is filled with new numbers for each round.

    Attributes:
        of_8_bits: of a case with 8 bits, the same numbers by how many scales a backend takes (whether one).
    """

    def __init__(self, case: Case, seed: int) -> None:
        self._rng = torch.Generator(case.device).manual_seed(seed)
        self.of_8_bits: dict[bool, Quantised] = {}
        self._fp8, dtype = case.fp8, torch.bfloat16 if case.fp8 else getattr(torch, case.dtype)
        self.q_BTHD, self.k_BTKD, self.v_BTKD, self.do_BTHD = (
            torch.empty(
                (case.batch, case.sequence_length, heads, case.head_dim),
                dtype=dtype,
                device=case.device,
            )
            for heads in (case.heads, case.kv_heads, case.kv_heads, case.heads)
        )
        for leaf in self.leaves:
            leaf.requires_grad_(case.trains)

    @property
    def leaves(self) -> tuple[Tensor, Tensor, Tensor]:
        """The tensors that need gradients."""
        return self.q_BTHD, self.k_BTKD, self.v_BTKD

    def given(self, fp8: Fp8 | None) -> tuple[Tensor, ...]:
        """What a backend is called with: the leaves; or, of 8 bits, their numbers and scales."""
        if not self._fp8:
            return self.leaves
        assert fp8  # `refusals` says so of others
        if fp8.one_scale not in self.of_8_bits:
            self.of_8_bits[fp8.one_scale] = quantised(*self.leaves, fp8.one_scale)
        return self.of_8_bits[fp8.one_scale]

    def renew(self) -> None:
        """Fill them with normal numbers: on zeros, a GPU draws less power and keeps a higher clock."""
        with torch.no_grad():
            for tensor in (*self.leaves, self.do_BTHD):
                tensor.normal_(generator=self._rng)
            for one_scale, before in self.of_8_bits.items():
                for tensor, new in zip(before, quantised(*self.leaves, one_scale), strict=True):
                    tensor.copy_(new)


@dataclass
class Eager:
    """Called from Python, as in a model that nothing compiles."""

    backend: Backend
    case: Case
    inputs: TimedInputs
    o_BTHD: Tensor | None = None
    results: tuple[Tensor, ...] = ()

    def forward(self) -> None:
        """Call the backend as training does, and keep what the backward needs."""
        self.o_BTHD = attention.attend(self.backend, self.case, *self.inputs.given(self.backend.fp8))
        if self.case.fp8:  # no backward comes
            self.results, self.o_BTHD = (self.o_BTHD,), None

    def backward(self) -> None:
        """Frees what the forward kept but its output."""
        assert self.o_BTHD is not None
        o_BTHD, self.o_BTHD = self.o_BTHD, None
        self.results = o_BTHD, *torch.autograd.grad(o_BTHD, self.inputs.leaves, self.inputs.do_BTHD)

    def both(self) -> None:
        """Call one after the other, of 8 bits the forward alone, and drop the results."""
        self.forward()
        if not self.case.fp8:
            self.backward()
        self.drop()

    def drop(self) -> None:
        """Free the output and the results, so that the next call finds the memory that it found before."""
        self.o_BTHD, self.results = None, ()


class Graphs:
    """Captured once and replayed, so that the host takes almost no time."""

    def __init__(self, eager: Eager, pool: Any) -> None:
        """Capture both passes.

        Args:
            pool: memory that all backends capture into. Each may overwrite what others left there but its
                results: a backward is always replayed right after its own forward.

        Raises:
            RuntimeError: the backend does something that no graph supports, such as a copy to the host.
        """
        self._forward, self._backward = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        # What is loaded, compiled or chosen at a first call must not be captured. So the first calls come
        # before, on a stream of their own, as captures require.
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # torch leaves it so
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                eager.both()
        torch.cuda.current_stream().wait_stream(stream)
        torch.cuda.synchronize()

        with torch.cuda.graph(self._forward, pool=pool):
            eager.forward()
        if not eager.case.fp8:
            with torch.cuda.graph(self._backward, pool=pool):
                eager.backward()
        self.results = eager.results  # every replay writes them there
        eager.drop()

    def forward(self) -> None:
        """Replay the forward."""
        self._forward.replay()

    def backward(self) -> None:
        """Replay the backward of the last forward."""
        self._backward.replay()

    def drop(self) -> None:
        """Nothing: the graph writes there again."""


Passes = Eager | Graphs  # a forward, and the backward that belongs to the last forward
