"""What was found about one backend on one machine, and the key under which it can be looked up.

Torch-free: launchers, the database and reports read it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, fields
from datetime import datetime
from typing import Any, Literal

from pydantic import Field

from model.record.case import Case
from model.record.config import Frozen
from model.record.files import dumps
from model.record.records import SCHEMA_VERSION, Version
from model.record.units import counted

Verdict = Literal["right", "wrong", "unsupported"]
ALLCLOSE = 1e-3  # rtol and atol of `allclose` on logits and gradients, as in the report of seeds/001


class Check(Frozen):
    """One thing that was checked."""

    name: str = Field(
        description="`right`, `finite`, `kernels`, `same loss`, ...: docs/backends.md lists them."
    )
    what: str = Field(description="The tensor or pass: o, dq, dk, dv, forward, backward, logits, ...")
    case: str = Field(description="Shape, precision and mask, as `describe` writes them.")
    variant: str = Field(description="The data and the way of calling: `plain`, `large logits`, ...")
    measured: float | None = Field(None, description="In the unit of the tolerance; None if not finite.")
    tolerance: float | None = Field(
        None, description="The largest value that passes; None: no number is judged."
    )
    plain: float | None = Field(
        None, description="What `math` measures in the same precision, against float64; None: not recorded."
    )
    relative_error: float | None = Field(None, description="||x - exact|| / ||exact||, float64, for people.")
    passed: bool
    reason: str | None = Field(None, description="What is wrong, as a sentence; None if it passed.")


class Certificate(Frozen):
    """The findings of `certify`: `right` only if every check passed, and checks of each kind were made."""

    schema_version: Version = SCHEMA_VERSION
    backend: str
    verdict: Verdict
    reasons: list[str] = Field(description="Why not `right`: each failed check, or what is not supported.")
    device: Literal["cuda", "cpu"]
    device_name: str | None = Field(description="None if there is no such device.")
    software: dict[str, str] = Field(
        description="Version by package, the backend's own modules included; variables that change numbers."
    )
    code: str = Field(description="SHA-256 of the backend's source files, and of the rules it was held to.")
    case: Case | None = Field(description="The run's, for a gate; None: all that the backend supports.")
    key: str = Field(description="By `key`: a run with the same key may use this certificate.")
    kernels: dict[str, list[str]] = Field(
        description="Names that the profiler saw: forward, backward, decoding."
    )
    deterministic: bool | None = Field(
        None,
        description="Whether ten calls (on a CPU three) at a busy shape, or the run's, gave the same bits.",
    )
    graph_break: str | None = Field(
        None,
        description="Why torch.compile ends its graph at a call; empty: it does not; None: not checked.",
    )
    checks: list[Check]
    not_looked_at: list[str] = Field(
        default=[], description="Cases that the backend says it does not take, with its reasons."
    )
    seconds: float
    created_at: datetime
    git_sha: str | None = Field(None, description="Commit of the checkout that `runner verify` ran from.")
    git_dirty: bool | None = Field(None, description="Whether that checkout had uncommitted changes.")


def key(
    backend: str, code: str, case: Case | None, device_name: str | None, software: Mapping[str, str]
) -> str:
    """The identity of a certificate: SHA-256 over everything that the result depends on.

    Args:
        code: by `model.attention.verify.identity.code`.
        case: None for a certificate that is not for one run's shape.
        software: version by package.
    """
    identity = [backend, code, case_fields(case) if case else None, device_name, dict(software)]
    return hashlib.sha256(dumps(identity).encode()).hexdigest()


def case_fields(case: Case) -> dict[str, Any]:
    """A case's fields. Those added later are left out at their defaults, so that keys stay the same."""
    later = ("new_tokens", "queries", "any_size", "context", "dropout", "tile", "decoding_dtype")
    defaults = {field.name: field.default for field in fields(case) if field.name in later}
    return {name: x for name, x in asdict(case).items() if name not in defaults or x != defaults[name]}


def describe(case: Case) -> str:
    """`B2 T257 H8 K2 D64 bfloat16 causal`, and `compiled` where the run is.

    Where there are fewer queries than keys, `B2 Q1 T257 ...`; where processes share the tokens, `over 4
    processes`; where tokens are decoded, `then 20 tokens`, with their precision if it is another; where
    weights are dropped, `dropout 0.125`; where the run chooses tiles, `tiles of 64 x 128`.
    For many sizes: `any size, 4 query heads per KV head, D64 bfloat16 causal`.
    """
    mask = ("causal" if case.causal else "no mask") + ", compiled" * case.compile
    mask += f", dropout {case.dropout:g}" if case.dropout else ""
    if case.tile:
        mask += ", tiles of {} x {}".format(*case.tile)
    if case.any_size:
        share = counted(case.heads // case.kv_heads, "query head")
        return f"any size, {share} per KV head, D{case.head_dim} {case.dtype} {mask}"
    length = (
        f"T{case.sequence_length}" if case.queries is None else f"Q{case.queries} T{case.sequence_length}"
    )
    shape = f"B{case.batch} {length} H{case.heads} K{case.kv_heads} D{case.head_dim}"
    over = f", over {case.context} processes" if case.context > 1 else ""
    after = f", then {case.new_tokens} tokens" if case.new_tokens else ""
    after += f" in {case.decoding_dtype}" if case.new_tokens and case.decoding_dtype else ""
    return f"{shape} {case.dtype} {mask}{over}{after}"
