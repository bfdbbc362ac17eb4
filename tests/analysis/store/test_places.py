"""Blocks and positions of runs that were planned in several roots: those that one root would have given."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import pytest

from analysis.store import database as store
from analysis.store.collect import collect
from tests.analysis.fabricate import START, Folder, plan

Place = tuple[int | None, int]  # block and position
FIRST = ("auto", "flash")


def planned(root: Path, day: int, places: dict[str, Place]) -> None:
    """Runs of one launch, of which each is planned a little after the one before."""
    for number, (attention, (block, position)) in enumerate(places.items()):
        fields = {"group": attention, "factors": {"attention": attention}, "repeat": day}
        created_at = START + timedelta(days=day, microseconds=number)
        run = plan(
            f"{attention}-{day}",
            attention=attention,
            block=block,
            position=position,
            created_at=created_at,
            **fields,
        )
        Folder(root, run)


def collected_places(root: Path) -> list[Sequence[object]]:
    collect(root)
    with store.open_for_reading(root) as connection:
        return connection.sql("SELECT run_id, block, position FROM runs ORDER BY run_id").fetchall()


@pytest.mark.parametrize(
    ("second", "third"),
    [
        (("auto", "flash"), ("flash", "auto")),
        (("auto", "custom"), ("custom", "flash")),  # a group that the first root lacks, on another machine
        (("math", "custom", "auto", "flash"), ("auto",)),
    ],
)
@pytest.mark.parametrize("blocks", [True, False])
def test_roots_that_are_merged_have_the_places_of_one_root(
    tmp_path: Path, second: tuple[str, ...], third: tuple[str, ...], blocks: bool
) -> None:
    """The position of each run is its own; a block has no run of another root's block."""
    last = 0
    for day, names in enumerate((FIRST, second, third), start=1):
        for root, number, before in (("one", day, last), ("merged", 1, 0)):
            places = {name: (number if blocks else None, before + n) for n, name in enumerate(names, start=1)}
            planned(tmp_path / root, day, places)
        last += len(names)
    assert collected_places(tmp_path / "merged") == collected_places(tmp_path / "one")
