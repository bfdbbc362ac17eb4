"""Real text becomes samples without loss, in an order that the seed alone decides."""

from itertools import islice

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from model.record.errors import UserError
from model.record.text import START, Column, Position, Source
from model.record.tokenizer import Bytes
from model.training import data
from model.training.data import IGNORE, Batches, check_amount, passes
from tests.model.conftest import run_config

TEXTS = [f"document {i}: " + "é" * i for i in range(40)]


@pytest.fixture
def path(tmp_path):
    pq.write_table(pa.table({"text": TEXTS, "n": range(40)}), tmp_path / "t.parquet", row_group_size=7)
    return tmp_path / "t.parquet"


def documents(path, column, seed):
    return (row.text for row in data._rows(Column(path, column), seed, START))


def test_each_epoch_has_every_document_once_in_another_order(path):
    stream = documents(path, "text", seed=3)
    first, second = list(islice(stream, 40)), list(islice(stream, 40))
    assert sorted(first) == sorted(second) == sorted(TEXTS)
    assert first != second != TEXTS
    assert list(islice(documents(path, "text", seed=3), 40)) == first
    assert list(islice(documents(path, "text", seed=4), 40)) != first


def test_packed_samples_join_up_to_the_documents_and_train_on_every_token(path):
    config = run_config(mode="pack", sequence_length=10, batch_size=3)
    batches = list(islice(Batches(config, Source(path)), 20))
    assert all(batch.inputs_BT.shape == batch.labels_BT.shape == (3, 10) for batch in batches)
    assert all(batch.training_tokens == 30 for batch in batches)
    inputs = np.concatenate([batch.inputs_BT.ravel() for batch in batches])
    labels = np.concatenate([batch.labels_BT.ravel() for batch in batches])
    assert (labels[:-1] == inputs[1:]).all(), "each label is the next input, across samples too"
    expected = [[256, *text.encode(), 257] for text in islice(documents(path, "text", 0), 20)]
    joined = np.concatenate(expected)
    assert (inputs[: len(joined)] == joined[: len(inputs)]).all()


def test_padded_samples_hold_one_document_each_and_do_not_train_on_padding(path):
    config = run_config(mode="pad", sequence_length=30, batch_size=2)
    texts = documents(path, "text", 0)
    for batch in islice(Batches(config, Source(path)), 15):
        for inputs, labels in zip(batch.inputs_BT, batch.labels_BT, strict=True):
            tokens = [256, *next(texts).encode(), 257][:31]
            assert inputs[: len(tokens)].tolist() == tokens[:30]
            assert labels[: len(tokens) - 1].tolist() == tokens[1:]
            assert (labels[len(tokens) - 1 :] == IGNORE).all()
        assert batch.training_tokens == (batch.labels_BT != IGNORE).sum() <= 60


@pytest.mark.parametrize("batch_size", [1, 3])
@pytest.mark.parametrize("length", [10, 200])
@pytest.mark.parametrize("mode", ["pad", "pack"])
def test_batches_go_on_from_a_position_to_the_token(path, mode, length, batch_size):
    """Over epochs, inside documents, and where a document spans batches or a batch spans row groups."""
    config = run_config(mode=mode, sequence_length=length, batch_size=batch_size)
    stream, positions, expected = Batches(config, Source(path)), [Position()], []
    for batch in islice(stream, 100):
        expected.append(batch)
        positions.append(Position.model_validate_json(stream.position.model_dump_json()))
    assert stream.position.epoch > 0 or (mode, length, batch_size) == ("pack", 10, 1)
    for start in [*range(0, 100, 9), 97]:
        resumed = Batches(config, Source(path), positions[start])
        for step in range(start, min(start + 20, 100)):
            resumed_batch = next(resumed)
            assert (resumed_batch.inputs_BT == expected[step].inputs_BT).all()
            assert (resumed_batch.labels_BT == expected[step].labels_BT).all()
            assert resumed.position == positions[step + 1]


def test_going_on_reads_one_row_group_and_tokenises_one_document(path, monkeypatch):
    config = run_config(mode="pack", sequence_length=2, batch_size=1)
    stream = Batches(config, Source(path))
    while stream.position.row < 30:  # of 40, in the fifth of six row groups
        next(stream)
    groups, texts = [], []
    read_row_group, encode = pq.ParquetFile.read_row_group, Bytes.encode
    monkeypatch.setattr(
        pq.ParquetFile,
        "read_row_group",
        lambda *arguments, **options: groups.append(arguments[1]) or read_row_group(*arguments, **options),
    )
    monkeypatch.setattr(
        Bytes, "encode", lambda self, text, limit: texts.append(text) or encode(self, text, limit)
    )
    next(Batches(config, Source(path), stream.position))
    assert (len(groups), len(texts)) == (1, 1)


def test_an_epoch_that_goes_on_where_only_empty_rows_are_left_is_no_epoch_without_text(tmp_path):
    texts = ["a", *[None] * 9]
    pq.write_table(pa.table({"text": texts}), tmp_path / "t.parquet", row_group_size=3)
    config = run_config(mode="pad", sequence_length=4, batch_size=1)
    stream = Batches(config, Source(tmp_path / "t.parquet"))
    first = next(stream)
    resumed = next(Batches(config, Source(tmp_path / "t.parquet"), stream.position))
    assert (resumed.inputs_BT == first.inputs_BT).all()
    assert stream.position.epoch == 0


@pytest.mark.refused
def test_a_model_with_too_few_ids_is_refused(path):
    config = run_config().model_copy(
        update={"model": run_config().model.model_copy(update={"vocab_size": 100})}
    )
    with pytest.raises(
        UserError, match=r"258 ids, but the model has room for 100: set model.vocab_size to 258"
    ):
        next(Batches(config, Source(path)))


@pytest.mark.refused
def test_a_column_without_text_is_an_error_and_not_an_endless_search(tmp_path):
    pq.write_table(pa.table({"text": pa.array([None, ""], pa.string())}), tmp_path / "t.parquet")
    with pytest.raises(UserError, match="has no text"):
        next(Batches(run_config(), Source(tmp_path / "t.parquet")))


class NoSpaces(Bytes):
    """As tokenizers that drop white space, and have no token for the beginning of a document."""

    begin = None

    def encode(self, text, limit=None):
        return super().encode("".join(text.split()), limit)


@pytest.mark.parametrize("mode", ["pad", "pack"])
def test_a_document_without_tokens_is_skipped_so_that_every_step_has_labels(tmp_path, monkeypatch, mode):
    monkeypatch.setattr(data, "load_tokenizer", lambda name: NoSpaces())
    file = tmp_path / "t.parquet"
    pq.write_table(pa.table({"text": [" ", "one", "\n\t", "two", "  "]}), file, row_group_size=2)
    config = run_config(mode=mode, sequence_length=8, batch_size=1)
    stream, positions = Batches(config, Source(file)), [Position()]
    batches = [(next(stream), positions.append(stream.position))[0] for _ in range(12)]
    assert all(batch.training_tokens > 0 for batch in batches)
    assert stream.position.epoch > 1
    for start in range(12):
        resumed = next(Batches(config, Source(file), positions[start]))
        assert (resumed.inputs_BT == batches[start].inputs_BT).all()


@pytest.mark.refused
@pytest.mark.parametrize("mode", ["pad", "pack"])
def test_text_without_a_token_is_an_error_and_not_an_endless_search(tmp_path, monkeypatch, mode):
    monkeypatch.setattr(data, "load_tokenizer", lambda name: NoSpaces())
    pq.write_table(pa.table({"text": [" ", "\n"]}), tmp_path / "t.parquet")
    with pytest.raises(UserError, match="no document of the text has any tokens"):
        next(Batches(run_config(mode=mode), Source(tmp_path / "t.parquet")))


def test_padding_tokenises_no_more_of_a_document_than_its_sample_holds(tmp_path, monkeypatch):
    pq.write_table(pa.table({"text": ["x" * 10**6]}), tmp_path / "t.parquet")
    lengths, encode = [], Bytes.encode
    monkeypatch.setattr(
        Bytes, "encode", lambda *arguments: lengths.append(len(ids := encode(*arguments))) or ids
    )
    batch = next(
        Batches(run_config(mode="pad", sequence_length=32, batch_size=1), Source(tmp_path / "t.parquet"))
    )
    assert lengths == [33]
    assert batch.labels_BT[0, -1] == ord("x"), "a document that was cut has no end"


@pytest.mark.refused
@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ([None] * 500, "column 'text' has no text"),
        (["", ""], "column 'text' has no text"),
        (["ab"], "has 4 tokens in all, but one sample takes 33 .* at most 3"),
        (["x" * 10, None, "y" * 10, ""], "has 24 tokens in all"),
    ],
    ids=["nulls", "empty", "two letters", "short"],
)
def test_text_that_does_not_fill_a_sample_is_refused(tmp_path, texts, message):
    pq.write_table(pa.table({"text": pa.array(texts, pa.string())}), tmp_path / "t.parquet", row_group_size=3)
    with pytest.raises(UserError, match=message):
        check_amount(run_config(sequence_length=32), Source(tmp_path / "t.parquet"), Bytes())


def test_whether_there_is_enough_text_is_found_without_reading_all_of_it(path, monkeypatch):
    lengths, encode = [], Bytes.encode
    monkeypatch.setattr(
        Bytes, "encode", lambda *arguments: lengths.append(len(ids := encode(*arguments))) or ids
    )
    check_amount(run_config(sequence_length=29), Source(path), Bytes())
    assert len(lengths) == 2


def test_how_often_a_run_reads_its_text_is_never_overstated(tmp_path):
    file = tmp_path / "t.parquet"
    pq.write_table(
        pa.table({"n": [{"a": 1}] * 50, "text": [f"{i:050}" for i in range(50)]}), file, compression="none"
    )
    for mode, steps, expected in (("pack", 52, 1), ("pack", 520, 10), ("pad", 50, 1), ("pad", 5, 0.1)):
        config = run_config(mode=mode, steps=steps, sequence_length=50, batch_size=1)
        count = passes(config.data, config.train, Source(file))
        assert count == pytest.approx(expected, rel=0.15)
        assert count <= expected
