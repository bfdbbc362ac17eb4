"""Real text becomes samples without loss, in an order that the seed alone decides."""

from itertools import islice

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from model.data import (
    IGNORE,
    Batches,
    Bytes,
    Position,
    Source,
    documents,
    fingerprint,
    load_tokenizer,
)
from model.errors import UserError
from tests.model.conftest import run_config

TEXTS = [f"document {i}: " + "é" * i for i in range(40)]


@pytest.fixture
def path(tmp_path):
    pq.write_table(pa.table({"text": TEXTS, "n": range(40)}), tmp_path / "t.parquet", row_group_size=7)
    return tmp_path / "t.parquet"


def test_each_epoch_has_every_document_once_in_another_order(path):
    stream = documents(path, "text", seed=3)
    first, second = list(islice(stream, 40)), list(islice(stream, 40))
    assert sorted(first) == sorted(second) == sorted(TEXTS)
    assert first != second != TEXTS
    assert list(islice(documents(path, "text", seed=3), 40)) == first
    assert list(islice(documents(path, "text", seed=4), 40)) != first


def test_packed_samples_join_up_to_the_documents_and_train_on_every_token(path):
    config = run_config(mode="pack", sequence_length=10, batch_size=3)
    found = list(islice(Batches(config, Source(path)), 20))
    assert all(batch.inputs_BT.shape == batch.labels_BT.shape == (3, 10) for batch in found)
    assert all(batch.training_tokens == 30 for batch in found)
    inputs = np.concatenate([batch.inputs_BT.ravel() for batch in found])
    labels = np.concatenate([batch.labels_BT.ravel() for batch in found])
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
        again = Batches(config, Source(path), positions[start])
        for step in range(start, min(start + 20, 100)):
            found = next(again)
            assert (found.inputs_BT == expected[step].inputs_BT).all()
            assert (found.labels_BT == expected[step].labels_BT).all()
            assert again.position == positions[step + 1]


def test_going_on_reads_one_row_group_and_tokenises_one_document(path, monkeypatch):
    config = run_config(mode="pack", sequence_length=2, batch_size=1)
    stream = Batches(config, Source(path))
    while stream.position.row < 30:  # of 40, in the fifth of six row groups
        next(stream)
    groups, texts = [], []
    read, encode = pq.ParquetFile.read_row_group, Bytes.encode
    monkeypatch.setattr(
        pq.ParquetFile, "read_row_group", lambda *a, **k: groups.append(a[1]) or read(*a, **k)
    )
    monkeypatch.setattr(Bytes, "encode", lambda self, text: texts.append(text) or encode(self, text))
    next(Batches(config, Source(path), stream.position))
    assert (len(groups), len(texts)) == (1, 1)


def test_an_epoch_that_goes_on_where_only_empty_rows_are_left_is_no_epoch_without_text(tmp_path):
    texts = ["a", *[None] * 9]
    pq.write_table(pa.table({"text": texts}), tmp_path / "t.parquet", row_group_size=3)
    config = run_config(mode="pad", sequence_length=4, batch_size=1)
    stream = Batches(config, Source(tmp_path / "t.parquet"))
    first = next(stream)
    again = next(Batches(config, Source(tmp_path / "t.parquet"), stream.position))
    assert (again.inputs_BT == first.inputs_BT).all()
    assert stream.position.epoch == 0


def test_bytes_round_trip_any_text():
    ids = Bytes().encode("aé😀\x00")
    assert bytes(ids.astype(np.uint8)).decode() == "aé😀\x00"
    assert ids.max() < Bytes.vocab_size


def test_a_tokenizer_json_is_used_by_path_and_by_folder(path, tmp_path):
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    library = Tokenizer(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel()
    library.train_from_iterator(
        TEXTS, trainers.BpeTrainer(vocab_size=280, special_tokens=["<s>", "</s>"], show_progress=False)
    )
    library.save(str(tmp_path / "tokenizer.json"))
    for name in (tmp_path, tmp_path / "tokenizer.json"):
        tokenizer = load_tokenizer(str(name))
        assert (tokenizer.begin, tokenizer.end) == (0, 1)
        assert len(tokenizer.encode("document")) < 8
    batch = next(Batches(run_config(), Source(path, str(tmp_path))))
    assert batch.inputs_BT[0, 0] == 0


def test_a_model_with_too_few_ids_is_refused(path):
    config = run_config().model_copy(
        update={"model": run_config().model.model_copy(update={"vocab_size": 100})}
    )
    with pytest.raises(
        UserError, match=r"258 ids, but the model has room for 100: set model.vocab_size to 258"
    ):
        next(Batches(config, Source(path)))


def test_a_column_without_text_is_an_error_and_not_an_endless_search(tmp_path):
    pq.write_table(pa.table({"text": pa.array([None, ""], pa.string())}), tmp_path / "t.parquet")
    with pytest.raises(UserError, match="has no text"):
        next(Batches(run_config(), Source(tmp_path / "t.parquet")))


def test_the_fingerprint_changes_with_the_content_and_not_with_the_place(path, tmp_path):
    first = fingerprint(Source(path), "text")
    (tmp_path / "copy.parquet").write_bytes(path.read_bytes())
    assert fingerprint(Source(tmp_path / "copy.parquet"), "text") == first
    pq.write_table(pa.table({"text": [*TEXTS[:-1], "other"]}), tmp_path / "other.parquet", row_group_size=7)
    assert fingerprint(Source(tmp_path / "other.parquet"), "text") != first
