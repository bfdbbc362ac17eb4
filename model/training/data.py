"""Real text in, token batches out: a run's text is streamed, tokenised, and cut into samples.

Torch-free. The order of the documents depends on the seed alone, so that runs which differ in their
attention backend see the same tokens in the same order.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from model.record.config import DataConfig, RunConfig, TrainConfig
from model.record.errors import UserError
from model.record.text import START, Column, Position, Source
from model.record.tokenizer import Tokenizer, load_tokenizer

Tokens = NDArray[np.int64]
IGNORE = -100  # a label that the loss does not count


@dataclass(frozen=True)
class Batch:
    """One step's input.

    Attributes:
        inputs_BT: token ids.
        labels_BT: the token that follows each input, IGNORE where it is padding.
    """

    inputs_BT: Tokens
    labels_BT: Tokens

    @property
    def training_tokens(self) -> int:
        """Number of labels that the loss counts."""
        return int((self.labels_BT != IGNORE).sum())


class Batches:
    """Endless batches of a run, epoch after epoch.

    Args:
        position: where to start, from another `Batches` of the same configuration and source. Getting there
            reads one row group and tokenises one document.

    Attributes:
        position: where the next batch starts.

    Raises:
        UserError: the tokenizer has more ids than the model; when a batch is taken, an epoch has no text.
    """

    def __init__(self, config: RunConfig, source: Source, position: Position = START) -> None:
        tokenizer = load_tokenizer(source.tokenizer)
        check_vocabulary(config, tokenizer)
        self.position = position
        self._batch_size = config.section.batch_size
        rows = _rows(Column(source.file, config.text.text_column), config.seed, position)
        length = config.section.sequence_length + 1
        if config.text.mode == "pad":
            self._samples = _padded(_tokenised(rows, tokenizer, length), length, tokenizer.end)
        else:
            self._samples = _packed(_tokenised(rows, tokenizer), length, position.used)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Batch:
        samples = [next(self._samples) for _ in range(self._batch_size)]
        self.position = samples[-1].after
        return Batch(np.stack([s.inputs_T for s in samples]), np.stack([s.labels_T for s in samples]))


def check_vocabulary(config: RunConfig, tokenizer: Tokenizer) -> None:
    """Refuse a tokenizer with ids that the model's embedding has no row for. Raises UserError."""
    if tokenizer.vocab_size > config.model.vocab_size:
        name, ids = config.text.tokenizer, tokenizer.vocab_size
        too_few = (
            f"tokenizer '{name}' has {ids:,} ids, but the model has room for {config.model.vocab_size:,}"
        )
        raise UserError(f"{too_few}: set model.vocab_size to {ids} or more")


def check_amount(config: RunConfig, source: Source, tokenizer: Tokenizer) -> None:
    """Refuse text that does not fill one sample. Reads only as much text as that takes.

    Raises:
        UserError: the column has no text, or fewer tokens than one sample.
    """
    wanted = config.section.sequence_length + 1
    around, tokens = 1 + (tokenizer.begin is not None), 0
    with Column(source.file, config.text.text_column) as column:
        for group in range(len(column.groups)):
            for text in filter(None, (text.as_py() for text in column.texts(group))):
                ids = len(tokenizer.encode(text, wanted))
                tokens += ids + around if ids else 0
                if tokens >= wanted:
                    return
    if not tokens:
        raise _no_text(column)
    raise UserError(
        f"{source.file} has {tokens:,} tokens in all, but one sample takes {wanted:,} "
        f"({config.section.length_key} and a label): use more text, or a sequence length of at most "
        f"{tokens - 1}"
    )


def passes(data: DataConfig, train: TrainConfig, source: Source) -> float:
    """Number of times that a run reads its text, at least: in documents if they are padded, else in bytes.

    A token has at least one byte. Text that Parquet stores once for several rows counts once.
    """
    with Column(source.file, data.text_column) as column:
        rows, size = sum(column.groups), column.stored_bytes
    if data.mode == "pad":
        return train.steps * train.batch_size / rows
    most = size + 2 * rows  # two, for begin and end
    return train.tokens / most


class _Row(NamedTuple):
    epoch: int
    row: int
    text: str


class _Document(NamedTuple):
    epoch: int
    row: int
    tokens: Tokens


class _Sample(NamedTuple):
    inputs_T: Tokens
    labels_T: Tokens
    after: Position


def _rows(column: Column, seed: int, start: Position) -> Iterator[_Row]:
    """Endless documents: every row once per epoch, row groups and the rows in them in a new order each time.

    Holds one row group in memory.

    Raises:
        UserError: an epoch has no text, or a text cannot be read.
    """
    for epoch in count(start.epoch):
        first = start.row if epoch == start.epoch else 0
        has_text = first > 0  # earlier rows had text
        for row, text in _epoch(column, np.random.default_rng((seed, epoch)), first):
            has_text = True
            yield _Row(epoch, row, text)
        if not has_text:
            raise _no_text(column)


def _no_text(column: Column) -> UserError:
    return UserError(f"{column.path}: column '{column.name}' has no text")


def _epoch(column: Column, order: np.random.Generator, first: int) -> Iterator[tuple[int, str]]:
    """The documents of one epoch from row `first` of its order; a row group before it is not read."""
    start = 0
    for group in map(int, order.permutation(len(column.groups))):
        # Drawn even for a row group that is not read: one generator gives the order of all row groups.
        rows = order.permutation(column.groups[group])
        if first < start + len(rows):
            texts = column.texts(group)
            for row in range(max(start, first), start + len(rows)):
                if text := texts[int(rows[row - start])].as_py():
                    yield row, text
        start += len(rows)


def _tokenised(rows: Iterator[_Row], tokenizer: Tokenizer, limit: int | None = None) -> Iterator[_Document]:
    """Documents as tokens. One without tokens is skipped: a sample of it has no labels, and so no loss.

    Args:
        limit: how many tokens of a document are used.
    """
    begin = [] if tokenizer.begin is None else [tokenizer.begin]
    newest = None  # the epoch of the newest document with tokens, at first that of the first document
    for epoch, row, text in rows:
        newest = epoch if newest is None else newest
        ids = tokenizer.encode(text, limit)
        if len(ids):
            newest = epoch
            yield _Document(epoch, row, np.concatenate([begin, ids, [tokenizer.end]]).astype(np.int64))
        elif epoch > newest + 1:
            raise UserError("no document of the text has any tokens")


def _padded(texts: Iterator[_Document], length: int, pad: int) -> Iterator[_Sample]:
    """One document a sample, cut at `length` tokens or padded up to it; padding is not trained on."""
    for epoch, row, tokens in texts:
        sample = np.full(length, pad, dtype=np.int64)
        labels = np.full(length, IGNORE, dtype=np.int64)
        kept = tokens[:length]
        sample[: len(kept)] = labels[: len(kept)] = kept
        yield _Sample(sample[:-1], labels[1:], Position(epoch=epoch, row=row + 1))


def _packed(texts: Iterator[_Document], length: int, used: int) -> Iterator[_Sample]:
    """Documents joined end to end and cut into samples; every token is trained on.

    Args:
        used: tokens of the first document to leave out.
    """
    last = next(texts)
    buffer = last.tokens[used:]
    while True:
        parts = [buffer]
        while sum(map(len, parts)) < length:
            last = next(texts)
            parts.append(last.tokens)
        buffer = np.concatenate(parts)
        while len(buffer) >= length:
            inputs_T, labels_T = buffer[: length - 1], buffer[1:length]
            buffer = buffer[length - 1 :]  # the last label is the next sample's first input
            # Without its last document the buffer was shorter than a sample, so the rest is of that document.
            used = len(last.tokens) - len(buffer)
            yield _Sample(inputs_T, labels_T, Position(epoch=last.epoch, row=last.row, used=used))
