"""A run's text is what its fingerprint says, and a tokenizer means what it says itself."""

import json
import os

import huggingface_hub
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from model.record import text
from model.record.config import DataConfig
from model.record.errors import UserError
from model.record.text import Column, Source, open_parquet
from model.record.tokenizer import Bytes, load_tokenizer
from model.training.data import Batches
from tests.model.conftest import run_config

TEXTS = [f"document {i}: " + "é" * i for i in range(40)]


@pytest.fixture(autouse=True)
def settings(monkeypatch):
    """Several pieces of a small file, and no wait until a file is old enough to be recognised."""
    monkeypatch.setattr(text, "PIECE", 500)
    monkeypatch.setattr(text, "_FRESH_NS", 0)


@pytest.fixture
def path(tmp_path):
    pq.write_table(pa.table({"text": TEXTS}), tmp_path / "t.parquet", compression="none", row_group_size=7)
    return tmp_path / "t.parquet"


@pytest.fixture
def no_reading(monkeypatch):
    """Call it, and a file that is hashed from then on fails the test."""
    return lambda: monkeypatch.setattr(text, "_content", lambda path: pytest.fail("the file was read"))


def fingerprint(source):
    return source.checked("text").fingerprint()


def change_one_word(path):
    content = path.read_bytes()
    assert content.count(b"document 17") == 1
    path.write_bytes(content.replace(b"document 17", b"dokument 20"))


def test_one_changed_word_changes_the_fingerprint_though_size_and_footer_stay(path):
    source = Source(path).checked("text")
    change_one_word(path)
    assert not source.recognised
    assert fingerprint(source) != source.fingerprint()


def test_the_fingerprint_does_not_depend_on_the_place(path, tmp_path):
    (tmp_path / "copy.parquet").write_bytes(path.read_bytes())
    assert fingerprint(Source(tmp_path / "copy.parquet")) == fingerprint(Source(path))


def test_a_file_that_is_recognised_is_not_read_again(path, no_reading):
    source = Source(path).checked("text")
    no_reading()
    recorded = text.Content.model_validate_json(source.content.model_dump_json())
    assert fingerprint(Source(path, "bytes", recorded)) == source.fingerprint()


def test_a_file_with_its_old_size_and_mtime_is_not_recognised_after_a_change(path):
    source, times = Source(path).checked("text"), path.stat()
    change_one_word(path)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert path.stat().st_mtime_ns == times.st_mtime_ns
    assert not source.recognised


def test_a_file_written_just_now_is_not_recognised_since_it_could_change_unseen(path, monkeypatch):
    monkeypatch.setattr(text, "_FRESH_NS", 10**12)
    source = Source(path).checked("text")
    assert source.content.digest
    assert not source.recognised


@pytest.mark.fault
def test_a_file_that_changes_while_it_is_read_is_refused(path, monkeypatch):
    real_pread = os.pread

    def pread(descriptor, length, start):
        path.touch()
        return real_pread(descriptor, length, start)

    monkeypatch.setattr(os, "pread", pread)
    with pytest.raises(UserError, match="is changing while it is read"):
        Source(path).checked("text")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    library = Tokenizer(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel()
    library.train_from_iterator(
        TEXTS, trainers.BpeTrainer(vocab_size=280, special_tokens=["<s>", "</s>"], show_progress=False)
    )
    return library


def saved(library, folder, **config):
    folder.mkdir(exist_ok=True)
    library.save(str(folder / "tokenizer.json"))
    if config:
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return str(folder)


@pytest.fixture
def folder(trained, tmp_path):
    return saved(trained, tmp_path / "tokenizer", bos_token="<s>", eos_token={"content": "</s>"})


def test_a_tokenizer_json_is_used_by_path_and_by_folder(path, folder):
    for name in (folder, f"{folder}/tokenizer.json"):
        tokenizer = load_tokenizer(name)
        assert (tokenizer.begin, tokenizer.end) == (0, 1)
        assert len(tokenizer.encode("document")) < 8
    batch = next(Batches(run_config(), Source(path, folder)))
    assert batch.inputs_BT[0, 0] == 0


@pytest.mark.refused
@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({}, r"does not say which token ends a document: .*special tokens: <s>, </s>"),
        ({"bos_token": "<s>", "eos_token": None}, "does not say which token ends a document"),
        ({"eos_token": "<end>"}, "'<end>', which its vocabulary lacks"),
        ({"eos_token": "</s>", "bos_token": "<start>"}, "'<start>', which its vocabulary lacks"),
    ],
    ids=["no config", "no end", "unknown end", "unknown beginning"],
)
def test_special_tokens_are_not_guessed(trained, tmp_path, config, message):
    with pytest.raises(UserError, match=message):
        load_tokenizer(saved(trained, tmp_path / "tokenizer", **config))


@pytest.mark.refused
@pytest.mark.parametrize("content", ["{", "[]", "\xff"])
def test_a_tokenizer_config_that_cannot_be_read_is_a_users_error(folder, content):
    (text.Path(folder) / "tokenizer_config.json").write_text(content, encoding="latin-1")
    with pytest.raises(UserError, match="tokenizer_config.json: "):
        load_tokenizer(folder)


def test_one_token_that_begins_and_ends_documents_stands_once_between_them(trained, tmp_path):
    name = saved(trained, tmp_path / "tokenizer", bos_token="</s>", eos_token="</s>")
    assert (load_tokenizer(name).begin, load_tokenizer(name).end) == (None, 1)


def test_a_tokenizer_that_asks_for_truncation_and_padding_still_gives_all_tokens_of_a_text(trained, tmp_path):
    library = Tokenizer.from_str(trained.to_str())
    library.enable_truncation(4)
    library.enable_padding(length=9)
    tokenizer = load_tokenizer(saved(library, tmp_path / "tokenizer", eos_token="</s>"))
    assert len(tokenizer.encode(" ".join(TEXTS))) > 9
    assert len(tokenizer.encode("document")) < 8


def test_the_largest_id_decides_how_many_ids_there_are(trained, tmp_path):
    content = json.loads(trained.to_str())
    content["added_tokens"][1]["id"] = content["model"]["vocab"]["</s>"] = 999
    tokenizer = load_tokenizer(
        saved(Tokenizer.from_str(json.dumps(content)), tmp_path / "t", eos_token="</s>")
    )
    assert (tokenizer.end, tokenizer.vocab_size) == (999, 1000)


def test_a_limit_gives_the_first_tokens_of_the_whole_text_and_encodes_no_more_than_that_takes(folder):
    tokenizer = load_tokenizer(folder)
    words = " ".join(TEXTS[i % 40] for i in range(2000))
    tokens = tokenizer.encode(words)
    for limit in (1, 7, 100, 1000):
        prefix = tokenizer.encode(words, limit)
        assert (prefix == tokens[:limit]).all()
        assert len(prefix) == limit
    assert (tokenizer.encode("document 1", 1000) == tokenizer.encode("document 1")).all()
    assert Bytes().encode("éa" * 100, 3).tolist() == [195, 169, 97, 195, 169]


def test_a_tokenizer_and_its_special_tokens_are_part_of_the_fingerprint(path, trained, folder):
    first_fingerprint = fingerprint(Source(path, folder))
    assert first_fingerprint != fingerprint(Source(path))
    saved(trained, text.Path(folder), eos_token="</s>")
    second_fingerprint = fingerprint(Source(path, folder))
    assert second_fingerprint != first_fingerprint
    (text.Path(folder) / "tokenizer.json").write_text(trained.to_str(pretty=False) + "\n")
    assert fingerprint(Source(path, folder)) not in (first_fingerprint, second_fingerprint)


def test_a_tokenizer_of_the_hub_is_part_of_the_fingerprint(path, folder, trained, tmp_path, monkeypatch):
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", lambda name, file: f"{folder}/{file}")
    monkeypatch.chdir(tmp_path)
    source = Source(path, "someone/something").checked("text")
    assert load_tokenizer(source.tokenizer).end == 1
    first_fingerprint = source.fingerprint()
    assert first_fingerprint == Source(path, folder, source.content).fingerprint()
    saved(trained, text.Path(folder), eos_token="<s>")
    assert source.fingerprint() != first_fingerprint


@pytest.mark.refused
def test_a_hub_that_cannot_be_reached_is_a_users_error(path, monkeypatch, tmp_path):
    def refuse(name, file):
        raise huggingface_hub.errors.LocalEntryNotFoundError("cannot find it in the cache, and no network")

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", refuse)
    monkeypatch.chdir(tmp_path)
    for lookup in (load_tokenizer, lambda name: Source(path, name).checked("text").fingerprint()):
        with pytest.raises(UserError, match="'someone/something': cannot find .*; valid: bytes"):
            lookup("someone/something")


@pytest.mark.refused
@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda path: path.mkdir(),
            r"is a folder, not a Parquet file; `runner data /.*/x --out /.*/x.parquet` makes one of its text",
        ),
        (os.mkfifo, "is not a regular file"),
        (lambda path: path.symlink_to("/dev/zero"), "is not a regular file"),
        (lambda path: path.symlink_to("nowhere"), r"no such file; .* --out /.*/nowhere.parquet` makes"),
        (lambda path: path.symlink_to(path.name), "(?i)symlink loop|symbolic links"),
        (lambda path: None, "no such file"),
        (lambda path: path.write_bytes(b"no parquet " * 100), "is not a Parquet file"),
        (lambda path: path.write_bytes(b""), "is not a Parquet file"),
    ],
    ids=["folder", "pipe", "device", "dangling", "loop", "missing", "not Parquet", "no bytes"],
)
def test_a_data_path_that_is_no_parquet_file_is_refused_at_once_for_what_it_is(tmp_path, make, message):
    make(tmp_path / "x")
    with pytest.raises(UserError, match=message):
        Source.of(DataConfig(path="x"), tmp_path).checked("text")


@pytest.mark.fault
def test_a_file_for_which_memory_runs_out_is_not_blamed(tmp_path, monkeypatch):
    def full(*_args, **_options):
        raise pa.ArrowMemoryError("malloc of size 65536 failed")

    (tmp_path / "x").write_bytes(b"")
    monkeypatch.setattr("pyarrow.parquet.ParquetFile", full)
    with pytest.raises(MemoryError, match="malloc"):
        open_parquet(tmp_path / "x")


ROWS = [f"row {i}: " + "text " * 20 for i in range(300)]


def written(path, texts, kind=None, **options):
    texts = texts if isinstance(texts, pa.Array) else pa.array(texts, kind)
    pq.write_table(pa.table({"text": texts}), path, row_group_size=100, **options)


def unchecked(texts):
    """Strings of these bytes, which need not be UTF-8."""
    return pa.Array.from_buffers(pa.string(), len(texts), pa.array(texts, pa.binary()).buffers())


def one_latin_byte(path):
    written(path, unchecked([b"caf\xe9" if i == 217 else b"text" for i in range(300)]))


def one_latin_byte_in_a_dictionary(path):
    words = unchecked([b"one", b"caf\xe9", b"two"])
    written(path, pa.DictionaryArray.from_arrays(pa.array([0, 1, 2] * 100), words))


def damaged(path, **options):
    """Change some bytes in the middle of the last row group's text."""
    written(path, ROWS, use_dictionary=False, **options)
    content, text = bytearray(path.read_bytes()), pq.ParquetFile(path).metadata.row_group(2).column(0)
    middle = text.data_page_offset + text.total_compressed_size // 2
    content[middle : middle + 40] = bytes(byte ^ 0x55 for byte in content[middle : middle + 40])
    path.write_bytes(content)


def bytes_lost(path):
    written(path, ROWS, use_dictionary=False)
    content = path.read_bytes()
    path.write_bytes(content[:200] + content[1000:])


def encrypted(path, plaintext_footer=False):
    from base64 import b64decode, b64encode

    from pyarrow.parquet import encryption

    class Keys(encryption.KmsClient):
        def __init__(self, _config):
            super().__init__()

        def wrap_key(self, key, _name):
            return b64encode(key).decode()

        def unwrap_key(self, key, _name):
            return b64decode(key)

    configuration = encryption.EncryptionConfiguration(
        "footer", column_keys={"column": ["text"]}, plaintext_footer=plaintext_footer
    )
    factory = encryption.CryptoFactory(Keys)
    written(
        path,
        ROWS,
        encryption_properties=factory.file_encryption_properties(
            encryption.KmsConnectionConfig(), configuration
        ),
    )


@pytest.mark.refused
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (one_latin_byte, r"row 217, in row group 2, cannot be read: byte 0xe9 is not UTF-8$"),
        (one_latin_byte_in_a_dictionary, r"in row group 0, cannot be read: .*UTF8"),
        (damaged, "row 200, in row group 2, cannot be read: "),
        (lambda path: damaged(path, compression="none"), r"row 2\d\d, in row group 2, cannot be read: "),
        (
            lambda path: damaged(path, compression="none", write_page_checksum=True),
            "row 200, in row group 2, cannot be read: .*checksum",
        ),
        (bytes_lost, r"row 0, in row group 0, cannot be read: "),
        (encrypted, "is not a Parquet file that can be read: .*encrypted"),
        (lambda path: encrypted(path, True), "row 0, in row group 0, cannot be read: .*decrypt"),
        (
            lambda path: pq.write_table(
                pa.Table.from_arrays([pa.array(ROWS), pa.array(ROWS)], names=["text", "text"]), path
            ),
            "has 2 columns named 'text'",
        ),
        (lambda path: written(path, [{"text": row} for row in ROWS]), "holds struct<text: string>, not text"),
        (lambda path: written(path, [[row] for row in ROWS]), "holds list<.*>, not text"),
        (lambda path: written(path, ROWS, pa.binary()), "holds binary, not text"),
        (lambda path: written(path, [None], pa.null()), "holds null, not text"),
        (lambda path: written(path, [], pa.string()), "has no rows"),
    ],
    ids=[
        "Latin-1", "Latin-1 in a dictionary", "damaged", "damaged, uncompressed", "damaged, with checksums",
        "bytes lost", "encrypted", "encrypted column", "two columns", "struct", "list", "bytes", "nulls",
        "no rows",
    ],
)  # fmt: skip
def test_text_that_cannot_be_read_is_told_with_its_file_row_and_row_group(tmp_path, make, message):
    make(tmp_path / "x.parquet")
    with pytest.raises(UserError, match=f"^{tmp_path}/x.parquet:? .*{message}"):
        Column(tmp_path / "x.parquet", "text").check()


@pytest.mark.refused
@pytest.mark.parametrize("make", [one_latin_byte, damaged])
def test_a_run_that_meets_a_bad_row_says_the_same_as_a_launch_would_have(tmp_path, make):
    make(tmp_path / "x.parquet")
    with pytest.raises(UserError) as launch:
        Column(tmp_path / "x.parquet", "text").check()
    batches = Batches(run_config(batch_size=64), Source(tmp_path / "x.parquet"))
    with pytest.raises(UserError) as step:
        for _ in range(100):
            next(batches)
    assert str(step.value) == str(launch.value)


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.string_view(), "dictionary"], ids=str)
def test_text_is_read_however_arrow_holds_it(tmp_path, kind):
    texts = pa.array(ROWS).dictionary_encode() if kind == "dictionary" else pa.array(ROWS, kind)
    pq.write_table(pa.table({"text.more": ["no"] * 300, "text": texts}), tmp_path / "x.parquet")
    with Column(tmp_path / "x.parquet", "text") as column:
        column.check()
        assert column.texts(0).to_pylist() == ROWS
        assert column.stored_bytes > 0


@pytest.mark.fault
def test_a_file_that_changes_while_it_is_read_is_not_called_damaged(tmp_path):
    written(tmp_path / "x.parquet", ROWS)
    with Column(tmp_path / "x.parquet", "text") as column:
        (tmp_path / "x.parquet").write_bytes(b"another")
        with pytest.raises(UserError, match="x.parquet was changed while it was being read"):
            column.check()


@pytest.mark.fault
def test_a_row_group_that_does_not_fit_in_memory_is_named(tmp_path, monkeypatch):
    def full(*_args, **_options):
        raise pa.ArrowMemoryError("malloc of size 65536 failed")

    written(tmp_path / "x.parquet", ROWS)
    monkeypatch.setattr(pq.ParquetFile, "read_row_group", full)
    with Column(tmp_path / "x.parquet", "text") as column:
        with pytest.raises(MemoryError):
            column.texts(0)
        with pytest.raises(UserError, match="row group 0, of 100 rows, does not fit in the memory"):
            column.check()


@pytest.mark.refused
@pytest.mark.parametrize("name", ["x" * 300, "a\0b", "a/" * 3000])
def test_a_path_that_no_file_can_have_is_a_users_error(tmp_path, name):
    with pytest.raises(UserError):
        Source.of(DataConfig(path=name), tmp_path).checked("text")
    with pytest.raises(UserError):
        load_tokenizer(Source.of(DataConfig(path="x", tokenizer=name), tmp_path).tokenizer)


def test_bytes_round_trip_any_text():
    ids = Bytes().encode("aé😀\x00")
    assert bytes(ids.astype(np.uint8)).decode() == "aé😀\x00"
    assert ids.max() < Bytes.vocab_size
