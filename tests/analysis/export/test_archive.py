"""A study's archive: the same rows and the same pages elsewhere, and nothing but runs comes out of one."""

from __future__ import annotations

import gzip
import io
import os
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from analysis.export.pack import pack
from analysis.export.unpack import unpack
from analysis.query.ask import ask
from analysis.report.build import build_report
from analysis.report.carried import files
from analysis.store.collect import collect
from model.record.errors import UserError
from model.record.files import append
from model.record.outcome import Outcome
from model.record.records import LedgerEvent, now
from tests.analysis.fabricate import Folder, certificate, completed, plan
from tests.analysis.timed import certified


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs, one of which ended on its second attempt, a third in flight, a torn one, and what belongs to no record."""
    root = tmp_path_factory.mktemp("root")
    completed(root, "r1")
    retried = Folder(root, plan("r2", attention="flash"))
    retried.event("claimed", executor="local", host="login1", pid=7)
    retried.start(certificate=certificate(root, "flash", case=None).key)
    retried.end("oom_gpu", steps=0)
    retried.start(attempt=2)
    retried.step(5, attempt=2)
    retried.audit(5, attempt=2)
    retried.end(attempt=2)
    unfinished = Folder(root, plan("r3", attention="math"))
    unfinished.event("claimed", executor="local", host="login1", pid=7)
    unfinished.start()
    (root / "backends" / "torn").mkdir()
    (root / "backends" / "torn" / "run.json").write_text('{"schema_version": 1, "run_')
    certificate(root, "unused")
    (retried.path / "attempt-2" / "checkpoint").mkdir()
    (retried.path / "attempt-2" / "checkpoint" / "weights").write_text("large")
    (retried.path / "attempt-2" / "stdout.log").write_text("a token")
    for kind in ("lock", "diff"):
        (root / "backends" / ".provenance").mkdir(exist_ok=True)
        (root / "backends" / ".provenance" / f"{'a' * 64}.{kind}").write_text(kind)
    return root


@pytest.fixture
def archive(root: Path, tmp_path: Path) -> Path:
    pack(root, "backends", tmp_path / "backends.tar.gz")
    return tmp_path / "backends.tar.gz"


@pytest.fixture
def there(tmp_path: Path) -> Path:
    return tmp_path / "there"


def names(archive: Path) -> set[str]:
    with tarfile.open(archive) as tar:
        return set(tar.getnames())


def test_what_a_study_said_elsewhere_it_says_here(
    root: Path, archive: Path, there: Path, tmp_path: Path
) -> None:
    shutil.copytree(root, tmp_path / "here")
    for name in ("r3", "torn"):
        shutil.rmtree(tmp_path / "here" / "backends" / name)
    unpacked = unpack(archive, there)
    assert (unpacked.study, unpacked.added, unpacked.there, unpacked.certificates) == ("backends", 2, 0, 1)
    for place in ("here", "there"):
        collect(tmp_path / place)
        build_report(tmp_path / place, "backends", tmp_path / f"{place}-report", logs=False)
    for table in (
        "run_records",
        "attempts",
        "step_records",
        "audits",
        "certificates",
        "verifications",
        "runs",
        "steps",
    ):
        condition = "" if table not in ("certificates", "verifications") else "WHERE attention = 'flash'"
        query = f"FROM {table} {condition} ORDER BY ALL"
        assert ask(tmp_path / "there", query).rows == ask(tmp_path / "here", query).rows != ()
    pages = [path for path in files(tmp_path / "here-report") if path.endswith((".html", ".csv", ".svg"))]
    for path in pages:
        assert (tmp_path / "here-report" / path).read_bytes() == (
            tmp_path / "there-report" / path
        ).read_bytes()


def test_an_archive_has_the_times_of_attention_alone_and_the_certificates_that_they_name(
    tmp_path: Path, there: Path
) -> None:
    root = tmp_path / "root"
    certified(root, "flash")
    pack(root, "kernels", tmp_path / "kernels.tar.gz")
    assert unpack(tmp_path / "kernels.tar.gz", there).certificates == 1
    for place in (root, there):
        collect(place)
    for table in ("kernels", "certificates", "verifications"):
        query = f"FROM {table} ORDER BY ALL"
        assert ask(there, query).rows == ask(root, query).rows != ()


def test_it_holds_records_and_what_was_asked_for(root: Path, archive: Path, tmp_path: Path) -> None:
    members = names(archive)
    assert {"backends/r1/run.json", "backends/r2/attempt-2/steps.jsonl"} < members
    assert not any(
        "r3" in name or "torn" in name or "checkpoint" in name or name.endswith((".log", ".diff"))
        for name in members
    )
    assert sum(name.startswith(".certificates/") for name in members) == 1
    omissions = pack(root, "backends", tmp_path / "all.tar.gz", logs=True, diffs=True)
    assert (omissions.in_flight, omissions.unreadable) == (("r3",), ("torn",))
    assert names(tmp_path / "all.tar.gz") - members == {
        "backends/r2/attempt-2/stdout.log",
        f"backends/.provenance/{'a' * 64}.diff",
    }
    unpack(tmp_path / "all.tar.gz", tmp_path / "there")
    diff = tmp_path / "there" / "backends" / ".provenance" / f"{'a' * 64}.diff"
    assert diff.stat().st_mode & 0o777 == 0o600, "only its owner reads uncommitted changes"


def test_equal_folders_give_equal_bytes(root: Path, archive: Path, tmp_path: Path) -> None:
    pack(root, "backends", tmp_path / "again.tar.gz")
    assert (tmp_path / "again.tar.gz").read_bytes() == archive.read_bytes()


def test_what_is_there_already_is_left_alone(archive: Path, there: Path) -> None:
    unpack(archive, there)
    (there / "backends" / "r1" / "attempt-1" / "stdout.log").write_text("printed here")
    shutil.rmtree(there / "backends" / "r2")
    unpacked = unpack(archive, there)
    assert (unpacked.added, unpacked.continued, unpacked.there, unpacked.certificates) == (1, 0, 1, 0)
    assert not list(there.glob(".unpacking*"))


@pytest.mark.refused
def test_another_run_of_the_same_name_is_never_overwritten(archive: Path, there: Path) -> None:
    completed(there, "r1", seconds=0.5)
    before = {path: path.read_bytes() for path in there.rglob("*") if path.is_file()}
    with pytest.raises(UserError, match="different records: backends/r1: unpack it into another root"):
        unpack(archive, there)
    assert {path: path.read_bytes() for path in there.rglob("*") if path.is_file()} == before


@pytest.fixture
def travelled(root: Path, archive: Path, there: Path, tmp_path: Path) -> Path:
    """An archive of a later day: r2 was stopped after its first attempt in `there`, and went on elsewhere."""
    unpack(archive, there)
    shutil.rmtree(there / "backends" / "r2" / "attempt-2")
    return archive


def cut_off(run: Path) -> None:
    """Leave of a run what a copy has that was made while it was going on."""
    (run / "attempt-1" / "result.json").unlink()
    for name in ("ledger.jsonl", "attempt-1/steps.jsonl"):
        content = (run / name).read_bytes()
        line_end = content.index(b"\n") + 1
        (run / name).write_bytes(content[: line_end if name == "ledger.jsonl" else line_end + 30])


def outcomes(root: Path) -> list[tuple[object, ...]]:
    collect(root)
    return list(ask(root, "SELECT run_id, outcome, attempts, steps FROM runs ORDER BY run_id").rows)


def test_a_run_that_went_on_elsewhere_comes_back_once_with_its_later_attempt(
    travelled: Path, there: Path, tmp_path: Path
) -> None:
    pack(there, "backends", older := tmp_path / "older.tar.gz")
    before = outcomes(there)
    (checkpoint := there / "backends" / "r2" / "attempt-1" / "checkpoint").mkdir()
    unpacked = unpack(travelled, there)
    assert (unpacked.added, unpacked.continued, unpacked.there) == (0, 1, 1)
    after = outcomes(there)
    assert [row[:3] for row in before] == [("r1", "completed", 1), ("r2", "oom_gpu", 1)]
    assert [row[:3] for row in after] == [("r1", "completed", 1), ("r2", "completed", 2)]
    assert checkpoint.is_dir(), "what only this machine has stays"
    for archive in (older, travelled):  # in any order, as often as somebody likes
        unpacked = unpack(archive, there)
        assert (unpacked.added, unpacked.continued, unpacked.there) == (0, 0, 2)
        assert outcomes(there) == after


def test_an_attempt_that_was_cut_off_in_a_copy_is_completed_by_the_records_of_its_end(
    archive: Path, there: Path
) -> None:
    """A copy of the folders was made while the run was going on; its archive came later."""
    unpack(archive, there)
    cut_off(there / "backends" / "r1")
    assert outcomes(there)[0][:2] == ("r1", None)
    assert unpack(archive, there).continued == 1
    assert outcomes(there)[0] == ("r1", "completed", 1, 100)


@pytest.mark.refused
def test_an_attempt_that_counts_as_lost_here_and_completed_there_is_never_counted_twice(
    archive: Path, there: Path
) -> None:
    unpack(archive, there)
    cut_off(there / "backends" / "r1")
    event = LedgerEvent(time=now(), event="ended", attempt=1, outcome=Outcome.LOST)
    append(there / "backends" / "r1" / "ledger.jsonl", event)
    before = outcomes(there)
    with pytest.raises(
        UserError, match="different records: backends/r1: .*, or first remove those of"
    ) as error:
        unpack(archive, there)
    assert outcomes(there) == before

    assert f"remove those of {there / 'backends'} that it should replace" in str(error.value)
    shutil.rmtree(there / "backends" / "r1")
    unpack(archive, there)
    assert [row[:3] for row in outcomes(there) if row[0] == "r1"] == [("r1", "completed", 1)]


def _entries(*_: None) -> None:
    """One expression of two entries."""


def _entry(tar: tarfile.TarFile, name: str, content: bytes = b"{}", **fields: object) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(content)
    for field, value in fields.items():
        setattr(entry, field, value)
    tar.addfile(entry, io.BytesIO(content))


RUN = "backends/r1/run.json"
HOSTILE: dict[str, Callable[[tarfile.TarFile], None]] = {
    "above": lambda tar: _entry(tar, "../outside.json"),
    "absolute": lambda tar: _entry(tar, "/tmp/outside.json"),
    "between": lambda tar: _entry(tar, "backends/../../outside.json"),
    "link": lambda tar: _entry(tar, RUN, b"", type=tarfile.SYMTYPE, linkname="/etc/passwd"),
    "hard link": lambda tar: _entry(tar, RUN, b"", type=tarfile.LNKTYPE, linkname="/etc/passwd"),
    "device": lambda tar: _entry(tar, RUN, b"", type=tarfile.CHRTYPE),
    "code": lambda tar: _entry(tar, "backends/.code/aa/model.py"),
    "checkpoint": lambda tar: _entry(tar, "backends/r1/attempt-1/checkpoint/weights.pt"),
    "database": lambda tar: _entry(tar, "results.duckdb"),
    "sparse": lambda tar: _entry(tar, RUN, pax_headers={"GNU.sparse.map": "0,1", "GNU.sparse.size": "9" * 12}),
    "twice": lambda tar: _entries(_entry(tar, RUN), _entry(tar, RUN)),
    "two studies": lambda tar: _entries(_entry(tar, RUN), _entry(tar, "other/r1/run.json")),
    "no record": lambda tar: _entry(tar, "backends/r1/ledger.jsonl"),
    "torn record": lambda tar: _entry(tar, RUN, b'{"schema_version": 1'),
    "newer record": lambda tar: _entry(tar, RUN, b'{"schema_version": 2}'),
    "another's": lambda tar: _entry(tar, RUN, plan("r9").model_dump_json().encode()),
    "a certificate of another name": lambda tar: _entries(
        _entry(tar, RUN, plan("r1").model_dump_json().encode()),
        _entry(tar, f".certificates/{'b' * 64}.json"),
    ),
    "sparse without a map": lambda tar: _entry(tar, RUN, pax_headers={"GNU.sparse.map": "a,b"}),
    "database as a study": lambda tar: _entry(
        tar, "results.duckdb/r1/run.json", plan("r1").model_copy(update={"study": "results.duckdb"}).model_dump_json().encode()
    ),
    "nothing": lambda tar: None,
    "bomb": lambda tar: _entry(tar, "backends/r1/attempt-1/steps.jsonl", bytes(65 * 2**20)),
}  # fmt: skip


@pytest.mark.refused
@pytest.mark.parametrize("kind", HOSTILE)
def test_an_archive_with_anything_else_is_refused_whole(kind: str, there: Path, tmp_path: Path) -> None:
    path = tmp_path / "bad.tar.gz"
    with tarfile.open(path, "w:gz", compresslevel=1) as tar:
        HOSTILE[kind](tar)
    with pytest.raises(UserError, match=r"bad\.tar\.gz") as error:
        unpack(path, there)
    assert ".unpacking" not in str(error.value)
    assert not [file for file in there.rglob("*") if file.is_file()]
    assert not (tmp_path / "outside.json").exists()


@pytest.mark.refused
@pytest.mark.parametrize("content", [b"", b"no archive", gzip.compress(b"no tar", mtime=0), None])
def test_what_is_no_archive_is_refused(content: bytes | None, archive: Path, there: Path) -> None:
    archive.write_bytes(archive.read_bytes()[:700] if content is None else content)
    with pytest.raises(UserError, match=r"backends\.tar\.gz"):
        unpack(archive, there)


@pytest.mark.fault
def test_a_bit_that_flips_in_an_archive_is_found_and_nothing_unpacked(
    root: Path, there: Path, tmp_path: Path
) -> None:
    """The last bytes of a gzip file hold its checksum; tar stops reading before them."""
    archive = tmp_path / "a.tar.gz"
    pack(root, "backends", archive)
    plain = gzip.decompress(archive.read_bytes())
    stored = bytearray(gzip.compress(plain, compresslevel=0))  # a flip changes one byte, not how to unpack
    place = stored.index(b'"loss":') + len(b'"loss":')
    stored[place] ^= 1
    archive.write_bytes(stored)
    with pytest.raises(UserError, match="CRC check failed"):
        unpack(archive, there)
    assert not [file for file in there.rglob("*") if file.is_file()]


@pytest.mark.fault
@pytest.mark.parametrize("name", ["backends", ".certificates", "backends/r1"])
def test_a_file_or_a_link_in_the_place_of_a_folder_is_named(archive: Path, there: Path, name: str) -> None:
    (there / name).parent.mkdir(parents=True)
    (there / name).symlink_to("nowhere")
    with pytest.raises(UserError, match=r"use another root|unpack it into another root"):
        unpack(archive, there)
    assert (there / name).is_symlink()


@pytest.mark.refused
@pytest.mark.parametrize("kind", ["link", "pipe", "folder"])
def test_what_is_no_file_is_refused_without_waiting_for_it(kind: str, archive: Path, there: Path) -> None:
    odd = archive.with_name("odd.tar.gz")
    {"link": lambda: odd.symlink_to(archive), "pipe": lambda: os.mkfifo(odd), "folder": odd.mkdir}[kind]()
    with pytest.raises(UserError, match="is not a file: name the archive itself"):
        unpack(odd, there)
    assert not there.exists()
