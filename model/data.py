"""Real text in, token batches out: a Parquet file is streamed, tokenised, and cut into samples.

Torch-free. The order of the documents depends on the seed alone, so that runs which differ in their
attention backend see the same tokens in the same order.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from model.config import DataConfig, Frozen, RunConfig
from model.errors import UserError, did_you_mean

if TYPE_CHECKING:
    import pyarrow.parquet as pq

Tokens = NDArray[np.int64]
IGNORE = -100  # a label that the loss does not count


@dataclass(frozen=True)
class Source:
    """Where a run's text comes from, resolved: a run starts in another working directory than its launch.

    Attributes:
        file: the Parquet file.
        tokenizer: `bytes`, an absolute path, or a name on the hub.
    """

    file: Path
    tokenizer: str = "bytes"

    @staticmethod
    def of(config: DataConfig, folder: Path) -> Source:
        """Resolve a study's data section; relative paths start at the study's folder."""
        local = (folder / config.tokenizer).resolve()
        here = config.tokenizer != "bytes" and local.exists()
        return Source((folder / config.path).resolve(), str(local) if here else config.tokenizer)


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
        """How many labels the loss counts."""
        return int((self.labels_BT != IGNORE).sum())


class Tokenizer(Protocol):
    """Text to ids. `encode` adds no special tokens."""

    vocab_size: int
    begin: int | None
    end: int

    def encode(self, text: str) -> Tokens:
        """Ids of a text."""
        ...


class Bytes:
    """UTF-8 bytes as tokens: ids 0-255, then begin and end of a document. Needs no file and no download."""

    vocab_size = 258
    begin: int | None = 256
    end = 257

    def encode(self, text: str) -> Tokens:
        """One id for each byte."""
        return np.frombuffer(text.encode("utf-8", "replace"), np.uint8).astype(np.int64)


class HuggingFace:
    """A tokenizer.json of the Hugging Face tokenizers library."""

    _BEGIN = ("<s>", "<|begin_of_text|>", "<bos>", "[CLS]")
    _END = ("</s>", "<|end_of_text|>", "<|endoftext|>", "<eos>", "[SEP]")

    def __init__(self, name: str) -> None:
        from tokenizers import Tokenizer as Library

        path = _tokenizer_file(name)
        try:
            self._library = Library.from_file(str(path)) if path.is_file() else Library.from_pretrained(name)
        except Exception as error:  # the library raises bare Exceptions
            valid = "bytes, a tokenizer.json, its folder, or a hub name"
            raise UserError(f"tokenizer '{name}': {str(error).splitlines()[0]}; valid: {valid}") from error
        self.vocab_size = self._library.get_vocab_size()
        self.begin = self._first(self._BEGIN)
        end = self._first(self._END)
        if end is None:
            raise UserError(f"tokenizer '{name}' has no end-of-text token (one of {', '.join(self._END)})")
        self.end = end

    def _first(self, tokens: tuple[str, ...]) -> int | None:
        ids = (self._library.token_to_id(token) for token in tokens)
        return next((number for number in ids if number is not None), None)

    def encode(self, text: str) -> Tokens:
        """The library's ids."""
        return np.asarray(self._library.encode(text, add_special_tokens=False).ids, dtype=np.int64)


def _tokenizer_file(name: str) -> Path:
    return Path(name) / "tokenizer.json" if Path(name).is_dir() else Path(name)


def load_tokenizer(name: str) -> Tokenizer:
    """Load `bytes` or a Hugging Face tokenizer.

    Raises:
        UserError: it cannot be loaded.
    """
    return Bytes() if name == "bytes" else HuggingFace(name)


def fingerprint(source: Source, text_column: str) -> str:
    """Check a Parquet file, and hash what a run reads.

    The hash covers the file's size and footer, which holds every column's statistics, and a tokenizer's file.

    Raises:
        UserError: the file is missing, empty or not Parquet, or it has no such column of text.
    """
    import pyarrow as pa

    path = source.file
    file = _open(path)
    schema, rows = file.schema_arrow, file.metadata.num_rows
    if text_column not in schema.names:
        raise UserError(f"{path} has no column '{text_column}' {did_you_mean(text_column, schema.names)}")
    kind = schema.field(text_column).type
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)):
        raise UserError(f"{path}: column '{text_column}' holds {kind}, not text")
    if not rows:
        raise UserError(f"{path} has no rows")
    with path.open("rb") as raw:
        size = raw.seek(0, 2)
        raw.seek(max(0, size - 8 - file.metadata.serialized_size))
        content = str(size).encode() + raw.read()
    if (tokenizer := _tokenizer_file(source.tokenizer)).is_file():
        content += tokenizer.read_bytes()
    return hashlib.sha256(content).hexdigest()[:16]


class Position(Frozen):
    """How far a run has read its text; `Batches` continues from exactly that token.

    The tokens left over from packing are always the end of the document that was read last, so this document
    and the number of its used tokens describe all of them.
    """

    epoch: int = Field(0, ge=0)
    row: int = Field(0, ge=0, description="The document to read first, counted in the epoch's own order.")
    used: int = Field(0, ge=0, description="Tokens of that document that earlier samples hold.")


START = Position()


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
        self._batch_size = config.train.batch_size
        rows = _rows(source.file, config.data.text_column, config.seed, position)
        length = config.train.sequence_length + 1
        if config.data.mode == "pad":
            self._samples = _padded(_tokenised(rows, tokenizer), length, tokenizer.end)
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
        name, ids = config.data.tokenizer, tokenizer.vocab_size
        too_few = (
            f"tokenizer '{name}' has {ids:,} ids, but the model has room for {config.model.vocab_size:,}"
        )
        raise UserError(f"{too_few}: set model.vocab_size to {ids} or more")


def documents(path: Path, text_column: str, seed: int) -> Iterator[str]:
    """Endless documents: every row once per epoch, row groups and the rows in them in a new order each time.

    Holds one row group in memory.

    Raises:
        UserError: an epoch has no text.
    """
    return (row.text for row in _rows(path, text_column, seed, START))


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


def _rows(path: Path, text_column: str, seed: int, start: Position) -> Iterator[_Row]:
    file = _open(path)
    for epoch in count(start.epoch):
        first = start.row if epoch == start.epoch else 0
        found = first > 0  # earlier rows had text
        for row, text in _epoch(file, text_column, np.random.default_rng((seed, epoch)), first):
            found = True
            yield _Row(epoch, row, text)
        if not found:
            raise UserError(f"{path}: column '{text_column}' has no text")


def _epoch(
    file: pq.ParquetFile, text_column: str, order: np.random.Generator, first: int
) -> Iterator[tuple[int, str]]:
    """The documents of one epoch from row `first` of its order; a row group before it is not read."""
    start = 0
    for group in map(int, order.permutation(file.num_row_groups)):
        # Drawn even for a row group that is not read: one generator gives the order of all row groups.
        rows = order.permutation(file.metadata.row_group(group).num_rows)
        if first < start + len(rows):
            yield from _group(file, group, text_column, rows, start, first)
        start += len(rows)


def _group(
    file: pq.ParquetFile, group: int, text_column: str, rows: NDArray[np.int64], start: int, first: int
) -> Iterator[tuple[int, str]]:
    texts = file.read_row_group(group, columns=[text_column]).column(0)
    for row in range(max(start, first), start + len(rows)):
        if text := texts[int(rows[row - start])].as_py():
            yield row, text


def _tokenised(rows: Iterator[_Row], tokenizer: Tokenizer) -> Iterator[_Document]:
    begin = [] if tokenizer.begin is None else [tokenizer.begin]
    for epoch, row, text in rows:
        tokens = np.concatenate([begin, tokenizer.encode(text), [tokenizer.end]]).astype(np.int64)
        yield _Document(epoch, row, tokens)


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


def _open(path: Path) -> pq.ParquetFile:
    import pyarrow as pa
    import pyarrow.parquet as pq

    if not path.is_file():
        raise UserError(
            f"{path}: no such file; `runner data FOLDER --out {path.name}` makes one from a folder of text"
        )
    try:
        return pq.ParquetFile(path)
    except (pa.ArrowException, OSError) as error:
        raise UserError(f"{path} is not a Parquet file: {str(error).splitlines()[0]}") from error
