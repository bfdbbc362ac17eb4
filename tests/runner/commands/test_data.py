"""`runner data` makes a corpus of a folder, and refuses what it cannot write in a sentence."""

import errno
import os

import pyarrow.parquet as pq
import pytest

from model.record.errors import UserError
from runner.commands.data import write_corpus


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "a.txt").write_text("some text")
    return tmp_path / "folder"


@pytest.mark.refused
@pytest.mark.parametrize(
    ("out", "message"),
    [
        (".", "is a folder: add the file's name, as in .*text.parquet"),
        ("folder", "is a folder: add the file's name"),
        ("folder/a.txt/x.parquet", "folder/a.txt: (Not a directory|File exists)"),
        ("pipe", "pipe already exists: name another file, or remove that one first"),
        ("folder/a.txt", "a.txt already exists: name another file"),
        ("link", "link already exists"),
        ("x" * 300, "File name too long"),
        ("y" * 242 + ".parquet", "File name too long"),  # only the temporary name beside it is
    ],
    ids=["here", "folder", "below a file", "pipe", "file", "broken link", "too long", "too long beside it"],
)
def test_a_place_where_no_file_can_be_written_is_a_users_error(folder, tmp_path, out, message):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("nowhere")
    with pytest.raises(UserError, match=message):
        write_corpus(folder, tmp_path / out)
    assert (folder / "a.txt").read_text() == "some text"
    assert not list(tmp_path.glob(".*"))


@pytest.mark.refused
def test_a_device_is_not_replaced_by_a_file(folder, tmp_path):
    from pathlib import Path

    with pytest.raises(UserError, match="already exists"):
        write_corpus(folder, Path(os.devnull))


@pytest.mark.refused
@pytest.mark.parametrize("match", ["", "/etc/*", "[", "*.py"])
def test_a_pattern_that_matches_no_file_name_is_a_users_error(folder, tmp_path, match):
    with pytest.raises(UserError, match="no text file matches"):
        write_corpus(folder, tmp_path / "x.parquet", match)


def test_folders_are_searched_except_those_that_are_named(folder, tmp_path):
    for name in ("b/c/d.txt", "b/skip/e.txt", "skip/f.txt", ".hidden/g.txt"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
    write_corpus(folder, tmp_path / "x.parquet", "*.txt", ["skip"])
    paths = pq.read_table(tmp_path / "x.parquet").column("path").to_pylist()
    assert paths == [".hidden/g.txt", "a.txt", "b/c/d.txt"]


@pytest.mark.fault
def test_a_folder_that_cannot_be_read_is_not_left_out_without_a_word(folder, tmp_path, monkeypatch):
    scan = os.scandir

    def refuse(path):
        if str(path).endswith("secret"):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return scan(path)

    (folder / "secret").mkdir()
    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(UserError, match="folder/secret: Permission denied"):
        write_corpus(folder, tmp_path / "x.parquet")
    assert not (tmp_path / "x.parquet").exists()


@pytest.mark.refused
def test_a_file_instead_of_the_folder_is_said_to_be_one(folder, tmp_path):
    with pytest.raises(UserError, match=r"a.txt: not a folder"):
        write_corpus(folder / "a.txt", tmp_path / "x.parquet")


def test_a_file_name_in_another_encoding_is_kept_as_far_as_it_can_be_read(folder, tmp_path):
    (folder / os.fsdecode(b"caf\xe9.txt")).write_text("more text")
    (folder / "pipe").symlink_to(tmp_path / "nowhere")
    write_corpus(folder, tmp_path / "x.parquet")
    assert pq.read_table(tmp_path / "x.parquet").column("path").to_pylist() == ["a.txt", "caf\ufffd.txt"]


def test_a_corpus_in_its_own_folder_holds_nothing_of_itself(folder):
    write_corpus(folder, folder / "x.parquet")
    assert pq.read_table(folder / "x.parquet").column("path").to_pylist() == ["a.txt"]


def test_a_byte_order_mark_is_no_part_of_a_text(folder, tmp_path):
    (folder / "b.txt").write_bytes(b"\xef\xbb\xbfsome \xef\xbb\xbftext")
    write_corpus(folder, tmp_path / "text.parquet")
    assert pq.read_table(tmp_path / "text.parquet")["text"].to_pylist() == ["some text", "some \ufefftext"]
