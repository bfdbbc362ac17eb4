"""Checks the text that a study's cells train on, before anything is planned."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from model.record.config import DataConfig
from model.record.errors import UserError
from model.record.files import Unreadable, read
from model.record.records import RunRecord
from model.record.text import Column, Content, Source, open_parquet
from model.record.tokenizer import load_tokenizer
from model.record.units import size
from model.training.data import check_amount, check_vocabulary, passes
from runner.inputs.cells import Cell
from runner.inputs.document import InvalidFile, Problem
from runner.inputs.study import Study

LARGE_BYTES = 4 * 2**30  # reading this much takes long enough to say so
log = logging.getLogger(__name__)


Checked = tuple[Source, str] | tuple[None, None]  # a source and its fingerprint
Contents = dict[tuple[Path, str], Content]  # by file, and the column that was read with it


def checked_sources(study: Study, cells: Sequence[Cell], root: Path) -> dict[DataConfig | None, Checked]:
    """Source and fingerprint by data configuration; None: of cells that read no text.

    A file that a run of this study knows is neither read through nor hashed.

    Raises:
        InvalidFile: what is wrong with a file, a tokenizer or the amount of text, at the setting to change.
    """
    contents: Contents = {}  # of each data file, as the newest runs of these cells recorded them
    for cell in {cell.config.data: cell for cell in cells}.values():
        with suppress(Unreadable):  # not planned yet
            run = read(root / study.name / cell.run_id / "run.json", RunRecord)
            if run.data_file and run.data_content:
                contents[Path(run.data_file), run.config.text.text_column] = run.data_content
    sources: dict[DataConfig | None, Checked] = {None: (None, None)}
    problems = list[Problem]()
    for data in dict.fromkeys(cell.config.data for cell in cells if cell.config.data):
        try:
            sources[data] = _checked(study, [cell for cell in cells if cell.config.data == data], contents)
        except InvalidFile as error:
            problems += error.problems
    if problems:
        raise InvalidFile(problems)
    return sources


def _checked(study: Study, cells: Sequence[Cell], contents: Contents) -> tuple[Source, str]:
    """Check all cells of one data configuration."""
    data = cells[0].config.text
    with _pointing_at(study, cells[0], "data.path"):
        open_parquet(Source.located(data, study.path.parent)).close()
    with _pointing_at(study, cells[0], "data.tokenizer"):
        source = Source.of(data, study.path.parent)
    with (
        _pointing_at(study, cells[0], "data.text_column", "data.path"),
        Column(source.file, data.text_column) as text,
    ):
        source = replace(source, content=contents.get((source.file, data.text_column)))
        if not source.recognised:
            if (amount := source.file.stat().st_size) >= LARGE_BYTES:
                log.info("reading %s (%s) once, to check and to fingerprint it", source.file, size(amount))
            text.check()
        source = source.checked(data.text_column)
        if source.content:
            contents[source.file, data.text_column] = source.content
    with _pointing_at(study, cells[0], "data.tokenizer"):
        tokenizer, fingerprint = load_tokenizer(source.tokenizer), source.fingerprint()
    for cell in {cell.config.model.vocab_size: cell for cell in cells}.values():
        with _pointing_at(study, cell, "model.vocab_size", "data.tokenizer"):
            check_vocabulary(cell.config, tokenizer)
    longest = max(cells, key=lambda cell: cell.config.section.sequence_length)
    with _pointing_at(study, longest, longest.config.section.length_key, "data.path"):
        check_amount(longest.config, source, tokenizer)
    trains = [cell.config.train for cell in cells if cell.config.section.trains]
    train = max(trains, key=lambda section: section.tokens, default=None)
    if train and (times := passes(data, train, source)) > 1:
        reading = f"{train.steps:,} steps read {source.file} at least {times:,.1f} times"
        log.warning("%s, so the loss is on text seen before: use more text, or fewer steps", reading)
    return source, fingerprint


@contextmanager
def _pointing_at(study: Study, cell: Cell, *settings: str) -> Iterator[None]:
    """Turn a user's error into one at the first of these settings that the study gives, else at `base`."""
    try:
        yield
    except UserError as error:
        marks = [cell.marks[setting] for setting in settings if setting in cell.marks]
        mark = marks[0] if marks else study.document.mark(("base",))
        raise InvalidFile.at(mark, str(error)) from error
