"""The design of a study, on which depends what its runs can show. Pure.

Its keys: repeats, order, baseline, margins, `until`.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Field, ValidationInfo, WithJsonSchema, field_validator, model_validator

from model.record.config import Frozen, Strict
from model.record.records import DesignRecord, Order
from runner.inputs.settings import Scalar

MAX_REPEATS = 1000
_PERCENT = r"(\d{1,2}(?:\.\d{1,6})?) ?%"


def _percent(text: Any) -> float:
    """`1%` or `0.5 %` as a fraction."""
    match = re.fullmatch(_PERCENT, str(text), re.ASCII)
    if not match or not float(match[1]):
        raise ValueError(
            f"expected a percentage above 0 and below 100, such as 1% or 0.5%, got {str(text)!r}"
        )
    return float(match[1]) / 100


Share = Annotated[
    float, BeforeValidator(_percent), WithJsonSchema({"type": "string", "pattern": f"^{_PERCENT}$"})
]
Repeats = Annotated[int, Field(strict=True, ge=1, le=MAX_REPEATS)]


class Margins(Strict):
    """Differences that do not matter, stated before the runs: smaller ones count as equivalent."""

    loss: float | None = Field(None, gt=0, description="Nats per token.")
    tokens_per_second: Share | None = Field(None, description="Percentage of the baseline's rate.")

    @property
    def stated(self) -> dict[str, float]:
        """The margins that were given; a percentage is a fraction here."""
        return self.model_dump(exclude_none=True)


class Until(Strict):
    """When to stop adding repeats."""

    tokens_per_second: Share = Field(
        description="Half-width of each group's interval of the rate relative to the baseline's."
    )
    at_most: Repeats = Field(description="Maximum repeats of a cell, however wide the intervals still are.")

    @model_validator(mode="after")
    def _can_add(self) -> Self:
        if self.at_most < 3:
            raise ValueError("`at_most` must be 3 or more: fewer repeats give no interval to stop at")
        return self


class DesignKeys(Frozen):
    """The keys, as a study and each of its scales may give them; None where they do not."""

    repeats: Repeats | None = Field(
        None, description="How many times each cell runs, with an identical configuration; default 1."
    )
    order: Order | None = Field(
        None,
        description="Order of starting. `interleaved`, the default: blocks of one repetition of every group, "
        "shuffled within each block. `random`: shuffled. `as written`: in the file's order.",
    )
    baseline: Annotated[dict[str, Scalar], Field(min_length=1)] | None = Field(
        None,
        description="Factors that pick the baseline; groups that differ only in these are compared with it.",
    )
    margins: Margins | None = Field(
        None, description="Differences too small to matter, by quantity; stated before the runs."
    )
    until: Until | None = Field(
        None, description="Add repeats until the comparison with the baseline is this precise."
    )

    @field_validator("*", mode="before")
    @classmethod
    def _has_a_value(cls, value: Any, key: ValidationInfo) -> Any:
        name = str(key.field_name)
        if value is None and cls.model_fields[name].default is None:  # it would unset nothing
            raise ValueError(f"'{name}' has no value: write one, or leave the key out")
        return value


@dataclass(frozen=True)
class Design:
    """A study's design at one scale, with its defaults."""

    repeats: int
    order: Order
    baseline: dict[str, Scalar] | None
    margins: Margins
    until: Until | None

    @classmethod
    def combined(cls, study: DesignKeys, scale: DesignKeys) -> Design:
        """Each key from the scale, else from the study, else its default."""
        return cls(
            repeats=scale.repeats or study.repeats or 1,
            order=scale.order or study.order or "interleaved",
            baseline=scale.baseline or study.baseline,
            margins=scale.margins or study.margins or Margins(),
            until=scale.until or study.until,
        )

    def record(self, study: str) -> DesignRecord:
        """The design as a run of this study records it."""
        return DesignRecord(
            order=self.order,
            order_seed=order_seed(study, self.order),
            baseline=self.baseline,
            margins=self.margins.stated,
            until=self.until.model_dump() if self.until else None,
        )


def order_seed(study: str, order: Order) -> int | None:
    """The seed of a study's shuffling, from its name alone; None where nothing is shuffled."""
    if order == "as written":
        return None
    return int.from_bytes(hashlib.sha256(f"order of {study}".encode()).digest()[:4], "big")


def places(runs: Sequence[tuple[str, str]], order: Order, seed: int | None) -> list[tuple[int, int | None]]:
    """Position of each run in the order of starting, and its block, from 1; None where there are no blocks.

    Block n holds the n-th repetition of every group, so that drift during the runs (clocks, temperature,
    other users, caches) affects all groups alike. A shuffled order is that of a hash of the seed and each
    run's id: leaving runs out, or adding some, does not reorder the others. A later launch of the same study
    orders the same runs alike.

    Args:
        runs: group and id of each, in the order of the file.
    """
    shuffled, in_blocks = order != "as written", order == "interleaved"
    repetitions, blocks, keys = Counter[str](), list[int](), list[tuple[int, str]]()
    for group, run_id in runs:
        repetitions[group] += 1
        block = repetitions[group]
        drawn = hashlib.sha256(f"{seed}/{run_id}".encode()).hexdigest() if shuffled else ""
        blocks.append(block)
        keys.append((block if in_blocks else 0, drawn))
    started = sorted(range(len(runs)), key=keys.__getitem__)
    positions = {number: n for n, number in enumerate(started, 1)}
    return [(positions[number], block if in_blocks else None) for number, block in enumerate(blocks)]
