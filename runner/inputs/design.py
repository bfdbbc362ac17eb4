"""The keys of a study that decide what its runs can show: repeats, order, baseline, margins, `until`."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Field, WithJsonSchema, model_validator

from model.record.config import Frozen, Strict
from model.record.records import DesignRecord, Order
from runner.inputs.settings import Scalar

MAX_REPEATS = 1000
_PERCENT = r"(\d{1,2}(?:\.\d{1,6})?) ?%"


def _percent(text: Any) -> float:
    """`1%` or `0.5 %` as a fraction."""
    found = re.fullmatch(_PERCENT, str(text), re.ASCII)
    if not found or not float(found[1]):
        raise ValueError(
            f"expected a percentage above 0 and below 100, such as 1% or 0.5%, got {str(text)!r}"
        )
    return float(found[1]) / 100


Share = Annotated[
    float, BeforeValidator(_percent), WithJsonSchema({"type": "string", "pattern": f"^{_PERCENT}$"})
]
Repeats = Annotated[int, Field(strict=True, ge=1, le=MAX_REPEATS)]


def order_seed(study: str, order: Order) -> int | None:
    """The seed of a study's shuffling, from its name alone; None where nothing is shuffled."""
    if order == "as written":
        return None
    return int.from_bytes(hashlib.sha256(f"order of {study}".encode()).digest()[:4], "big")


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


@dataclass(frozen=True)
class Design:
    """A study's design at one scale, with its defaults."""

    repeats: int
    order: Order
    baseline: dict[str, Scalar] | None
    margins: Margins
    until: Until | None

    @classmethod
    def of(cls, study: DesignKeys, scale: DesignKeys) -> Design:
        """Each key from the scale, else from the study, else its default."""
        return cls(
            repeats=scale.repeats or study.repeats or 1,
            order=scale.order or study.order or "interleaved",
            baseline=scale.baseline or study.baseline,
            margins=scale.margins or study.margins or Margins(),
            until=scale.until or study.until,
        )

    def record(self, study: str) -> DesignRecord:
        """What a run of this study records of it."""
        return DesignRecord(
            order=self.order,
            order_seed=order_seed(study, self.order),
            baseline=self.baseline,
            margins=self.margins.stated,
            until=self.until.model_dump() if self.until else None,
        )
