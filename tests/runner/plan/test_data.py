"""A study's text is checked when it is planned, at the setting to change, and hashed once."""

import logging

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from model.record import text
from model.record.errors import UserError
from model.record.files import write
from runner.inputs.document import InvalidFile
from runner.inputs.expansion import expand
from runner.inputs.profile import read_cluster
from runner.inputs.study import read_study
from runner.plan import data as plan_data
from runner.plan.plan import plan

STUDY = """\
title: A study
base:
  device: cpu
  model: {dim: 32, layers: 1, heads: 2, kv_heads: 1, ffn_dim: 64, vocab_size: 300}
  data:
    path: t.parquet
  train:
    steps: 2
    sequence_length: 32
    batch_size: 1
    dtype: float32
matrix: {seed: [0, 1]}
"""
TEXTS = [f"document {i}: " + "some text " * 20 for i in range(40)]


@pytest.fixture(autouse=True)
def old_enough(monkeypatch):
    monkeypatch.setattr(text, "_FRESH_NS", 0)


@pytest.fixture
def planned(tmp_path):
    """Write the data and the study, and plan it."""

    def make(texts=TEXTS, study=STUDY):
        file = tmp_path / "t.parquet"
        if texts is not None and not (texts is TEXTS and file.exists()):
            pq.write_table(pa.table({"text": pa.array(texts, pa.string())}), file, compression="none")
        (tmp_path / "s.yaml").write_text(study)
        parsed = read_study(tmp_path / "s.yaml")
        cells = expand(parsed, "full", (), ())
        return plan(parsed, cells, "full", read_cluster("local"), tmp_path / "runs")

    return make


def keep(plan):
    for record, _ in plan.runs:
        folder = plan.folder(record).path
        folder.mkdir(parents=True, exist_ok=True)
        write(folder / "run.json", record)


@pytest.mark.refused
@pytest.mark.parametrize(
    ("texts", "line", "message"),
    [
        ([None, None], 9, "column 'text' has no text"),
        (["", ""], 9, "column 'text' has no text"),
        (["ab"], 9, "4 tokens in all, but one sample takes 33"),
    ],
    ids=["nulls", "empty", "two letters"],
)
def test_text_that_cannot_be_trained_on_is_refused_before_anything_is_certified(
    planned, texts, line, message
):
    with pytest.raises(InvalidFile, match=message) as error:
        planned(texts)
    assert f"s.yaml:{line}:" in str(error.value)


@pytest.mark.refused
@pytest.mark.parametrize(
    ("old", "new", "place", "message"),
    [
        ("sequence_length: 32", "sequence_length: 100000", "9:5", "one sample takes 100,001"),
        (
            "path: t.parquet",
            "path: .",
            "6:5",
            "is a folder, not a Parquet file; name one of its files, such as .*/t.parquet",
        ),
        ("path: t.parquet", "path: s.yaml", "6:5", "is not a Parquet file"),
        ("path: t.parquet", f"path: {'x' * 300}", "6:5", "File name too long"),
        (
            "dtype: float32",
            "dtype: float16",
            "11:5",
            "training in float16 is not supported: .*train.dtype=bfloat16",
        ),
    ],
    ids=["long sequence", "folder", "no Parquet", "no name", "float16"],
)
def test_a_setting_that_cannot_be_trained_with_is_refused_at_its_place(planned, old, new, place, message):
    with pytest.raises(InvalidFile, match=message) as error:
        planned(study=STUDY.replace(old, new))
    assert f"s.yaml:{place}" in str(error.value)


def test_a_run_that_reads_its_text_again_and_again_is_said_to(planned, caplog):
    with caplog.at_level(logging.WARNING):
        planned()
    assert not caplog.records
    with caplog.at_level(logging.WARNING):
        planned(study=STUDY.replace("steps: 2", "steps: 2000"))
    (message,) = caplog.messages
    assert "2,000 steps read" in message
    assert "at least 6.9 times" in message


def test_a_file_is_hashed_once_and_later_launches_of_the_study_recognise_it(planned, monkeypatch):
    hashed, content = [], text._content
    monkeypatch.setattr(text, "_content", lambda path: hashed.append(path) or content(path))
    first = planned()
    assert len(hashed) == 1
    keep(first)
    second = planned()
    assert len(hashed) == 1
    assert [run.data_fingerprint for run, _ in second.runs] == [run.data_fingerprint for run, _ in first.runs]


@pytest.mark.refused
def test_a_bad_row_far_behind_is_refused_when_planned_whichever_column_was_read_before(planned, tmp_path):
    latin = pa.Array.from_buffers(pa.string(), 40, pa.array([b"x"] * 39 + [b"\xe9"], pa.binary()).buffers())
    pq.write_table(
        pa.table({"text": pa.array(TEXTS), "other": latin}), tmp_path / "t.parquet", row_group_size=8
    )
    keep(planned(texts=None))
    other = STUDY.replace("path: t.parquet", "path: t.parquet\n    text_column: other")
    with pytest.raises(InvalidFile, match="s.yaml:7:5: .*t.parquet: row 39, in row group 4, cannot be read"):
        planned(texts=None, study=other)


@pytest.mark.refused
@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("https://x.org/text.parquet", "'https://x.org/text.parquet' is a URL, .*: name a local copy"),
        ("s3://bucket/text.parquet", "is a URL"),
        ("file:///data/text.parquet", "is a URL, .*: write it without file://"),
        ("~nobody-of-this-name/x", "the home folder is unknown; write the path in full"),
    ],
)
def test_a_path_that_is_not_on_this_machine_is_refused_for_what_it_is(planned, path, message):
    for line, study in (
        (6, STUDY.replace("path: t.parquet", f"path: {path}")),
        (7, STUDY.replace("path: t.parquet", f"path: t.parquet\n    tokenizer: {path}")),
    ):
        with pytest.raises(InvalidFile, match=f"s.yaml:{line}:5: .*{message}") as error:
            planned(study=study)
        assert "--out" not in str(error.value)


def test_a_path_that_begins_with_a_tilde_is_in_the_home_folder(planned, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert planned(study=STUDY.replace("path: t.parquet", "path: ~/t.parquet")).runs
    with pytest.raises(InvalidFile, match=f"{tmp_path}/none: no such file; .* --out {tmp_path}/none.parquet"):
        planned(study=STUDY.replace("path: t.parquet", "path: ~/none"))


def test_a_study_whose_data_has_changed_by_a_word_is_not_mixed_with_its_old_runs(planned, tmp_path):
    keep(planned())
    file = tmp_path / "t.parquet"
    file.write_bytes(file.read_bytes().replace(b"document 17", b"dokument 17"))
    with pytest.raises(UserError, match="has changed since run .* was planned"):
        planned()


def test_reading_a_large_file_is_announced(planned, monkeypatch, caplog):
    monkeypatch.setattr(plan_data, "LARGE_BYTES", 1000)
    with caplog.at_level(logging.INFO):
        keep(planned())
        planned()
    (message,) = caplog.messages
    assert "once, to check and to fingerprint it" in message
