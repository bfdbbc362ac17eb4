"""Real text becomes samples without loss, in an order that the seed alone decides."""

from itertools import islice

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from model.data import IGNORE, Bytes, Source, batches, documents, fingerprint, load_tokenizer
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
    found = list(islice(batches(config, Source(path)), 20))
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
    for batch in islice(batches(config, Source(path)), 15):
        for inputs, labels in zip(batch.inputs_BT, batch.labels_BT, strict=True):
            tokens = [256, *next(texts).encode(), 257][:31]
            assert inputs[: len(tokens)].tolist() == tokens[:30]
            assert labels[: len(tokens) - 1].tolist() == tokens[1:]
            assert (labels[len(tokens) - 1 :] == IGNORE).all()
        assert batch.training_tokens == (batch.labels_BT != IGNORE).sum() <= 60


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
    batch = next(batches(run_config(), Source(path, str(tmp_path))))
    assert batch.inputs_BT[0, 0] == 0


def test_a_model_with_too_few_ids_is_refused(path):
    config = run_config().model_copy(
        update={"model": run_config().model.model_copy(update={"vocab_size": 100})}
    )
    with pytest.raises(UserError, match=r"258 ids and the model 100: set model.vocab_size to 258"):
        next(batches(config, Source(path)))


def test_a_column_without_text_is_an_error_and_not_an_endless_search(tmp_path):
    pq.write_table(pa.table({"text": pa.array([None, ""], pa.string())}), tmp_path / "t.parquet")
    with pytest.raises(UserError, match="has no text"):
        next(batches(run_config(), Source(tmp_path / "t.parquet")))


def test_the_fingerprint_changes_with_the_content_and_not_with_the_place(path, tmp_path):
    first = fingerprint(Source(path), "text")
    (tmp_path / "copy.parquet").write_bytes(path.read_bytes())
    assert fingerprint(Source(tmp_path / "copy.parquet"), "text") == first
    pq.write_table(pa.table({"text": [*TEXTS[:-1], "other"]}), tmp_path / "other.parquet", row_group_size=7)
    assert fingerprint(Source(tmp_path / "other.parquet"), "text") != first
