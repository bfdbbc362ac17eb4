"""YAML is read as it looks, and every error has its place."""

import os

import pytest

from runner.inputs.document import InvalidFile, Mark, parse, read_document


def test_scalars_are_read_by_yaml_1_2():
    """1e-4 is a number, 30:00, no and 1_000 are strings: what YAML 1.1 readers get wrong."""
    text = "a: 1e-4\nb: 30:00\nc: no\nd: 0o17\ne: true\nf: [1_000, 1_0.5, 0x_f, 0b11, 010]\n"
    assert parse(text, "f").data == {
        "a": 1e-4, "b": "30:00", "c": "no", "d": 15, "e": True, "f": ["1_000", "1_0.5", "0x_f", "0b11", 10],
    }  # fmt: skip


def test_every_value_has_its_place():
    document = parse("a: 1\nb:\n  - x\n  - {c: 2}\n", "f.yaml")
    assert str(document.mark(("a",))) == "f.yaml:1:1"
    assert str(document.mark(("b", 0))) == "f.yaml:3:5"
    assert str(document.mark(("b", 1, "c"))) == "f.yaml:4:6"
    assert str(document.mark(("b", 1, "missing"))) == "f.yaml:4:5", "a missing value takes its parent's place"


BOMB = "a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"a{i + 1}: &a{i + 1} [{','.join([f'*a{i}'] * 10)}]\n" for i in range(9)
)


@pytest.mark.refused
@pytest.mark.parametrize(
    ("text", "place", "message"),
    [
        ("a: 1\nb: 2\na: 3\n", "3:1", "'a' is already set on line 1"),
        ("a:\n\t- 1\n", "2:1", "a tab"),
        ("", "1:1", "empty"),
        ("# only a comment\n", "1:1", "empty"),
        ("x: 1\na: !!python/object/apply:os.system [ls]\n", "2:4", "tag"),
        ("a: !shell ls\n", "1:4", "tag"),
        ("<<: {a: 1}\n", "1:1", "merge"),
        ("a: &x [*x]\n", "1:4", "alias inside its own anchor"),
        (BOMB, "", "aliases expand"),
        ("[" * 3000, "1:1", "levels deep"),
        ("ok: 1\na: b\x07\n", "2:5", "U+0007"),
        ("1: 2\n", "1:1", "a key must be a string"),
        (
            "a: {b: 0,1}\n",
            "1:10",
            "'1' has no value, since a comma ends the one before it: put text with commas in quotes, '0,1', or write a decimal number with a point",
        ),
        ("a: {b: GPU-1f, GPU-2e }\n", "1:16", "put text with commas in quotes, 'GPU-1f,GPU-2e'"),
        (
            "a: {b: [1], c}\n",
            "1:13",
            "'c' has no value, since a comma ends the one before it: write 'c: VALUE'",
        ),
        ("a: [1\n", "2:1", "expected"),
        ("a: 1\n---\nb: 2\n", "2:1", "a second YAML document"),
    ],
)
def test_what_would_be_misread_is_refused_with_its_place(text, place, message):
    with pytest.raises(InvalidFile) as error:
        parse(text, "s.yaml")
    assert str(error.value).startswith(f"s.yaml:{place}")
    assert message in str(error.value)


@pytest.mark.refused
def test_bytes_that_are_not_utf8_are_refused_with_their_place(tmp_path):
    path = tmp_path / "s.yaml"
    path.write_bytes(b"title: x\nname: \xff\n")
    with pytest.raises(InvalidFile, match=r"s\.yaml:2:7: byte 0xff is not UTF-8"):
        read_document(path)


@pytest.mark.refused
@pytest.mark.parametrize("make", [lambda path: path.mkdir(), lambda path: None])
def test_a_folder_or_missing_file_is_refused_by_name(tmp_path, make):
    make(path := tmp_path / "s.yaml")
    with pytest.raises(InvalidFile, match=r"s\.yaml"):
        read_document(path)


@pytest.mark.refused
def test_a_huge_file_is_refused(tmp_path):
    path = tmp_path / "s.yaml"
    path.write_text("# " + "x" * 1_000_001)
    with pytest.raises(InvalidFile, match="bytes"):
        read_document(path)


@pytest.mark.refused
@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero")], ids=["pipe", "device"]
)
def test_a_file_that_never_ends_is_refused_and_not_read(tmp_path, make):
    make(tmp_path / "s.yaml")
    with pytest.raises(InvalidFile, match="s.yaml: not a regular file"):
        read_document(tmp_path / "s.yaml")


@pytest.mark.refused
def test_a_mistyped_file_is_refused_with_those_beside_it(tmp_path):
    (tmp_path / "first.yaml").write_text("title: x")
    with pytest.raises(InvalidFile, match=r"frist.yaml: No such file .*did you mean '.*first.yaml'"):
        read_document(tmp_path / "frist.yaml")


def test_a_caret_stands_under_its_letter_after_marks_that_take_no_column():
    """The vowel sign of \u0915\u0941 does not, although Unicode does not call it combining."""
    line, caret = Mark("s.yaml", 1, 4, "\u0915\u0941 x").excerpt.splitlines()
    assert (line, caret) == ("  1 | \u0915\u0941 x", "    |   ^")
