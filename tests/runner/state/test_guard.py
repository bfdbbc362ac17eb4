"""Which folders let others decide what runs as this user."""

import os
import struct
from types import SimpleNamespace

import pytest

from model.record.errors import UserError
from runner.state import guard

GROUP = 54300  # a group that is nobody's own

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give folders to other groups")


@pytest.fixture
def study(tmp_path):
    """A study in a folder that a link leads to: lab/link -> disk/root, with the study in it."""
    (study := tmp_path / "disk" / "root" / "study").mkdir(parents=True)
    (tmp_path / "lab").mkdir()
    (tmp_path / "lab" / "link").symlink_to("../disk/root")
    for path in (tmp_path / "disk", tmp_path / "disk" / "root", study, tmp_path / "lab"):
        os.chown(path, 0, GROUP)
    return tmp_path / "lab" / "link" / "study"


def opened(study):
    """The folder that lets a group replace a study, as `replaceable` says."""
    return [place for _, place, holder in guard.replaceable([study]) if holder == f"group {GROUP}"]


def test_folders_that_only_their_owner_can_write_to_are_right(study):
    guard.require_own(study)
    guard.require_closed_to_strangers(study)
    assert opened(study) == []


@pytest.mark.refused
@pytest.mark.parametrize("mode", [0o757, 0o2777])
@pytest.mark.parametrize("above", ["lab", "disk", "disk/root"])
def test_a_folder_that_everybody_can_write_to_is_refused_wherever_it_is_on_the_way(
    study, tmp_path, above, mode
):
    (tmp_path / above).chmod(mode)
    with pytest.raises(UserError, match=r"is writable by everybody, who could replace .*chmod \+t"):
        guard.require_closed_to_strangers(study)
    (tmp_path / above).chmod(mode | 0o1000)
    guard.require_closed_to_strangers(study)


@pytest.mark.parametrize("mode", [0o775, 0o2770])
@pytest.mark.parametrize("above", ["lab", "disk", "disk/root"])
def test_a_folder_of_a_group_is_named_wherever_it_is_on_the_way_and_not_refused(study, tmp_path, above, mode):
    (tmp_path / above).chmod(mode)
    guard.require_closed_to_strangers(study)
    (place,) = opened(study)
    assert place.samefile(tmp_path / above)
    assert opened(study / "not" / "there") == [place], "before the first launch, too"
    (tmp_path / above).chmod(mode | 0o1000)
    assert opened(study) == []


def test_what_a_group_can_write_to_is_named_even_in_a_folder_with_the_sticky_bit(study, tmp_path):
    (tmp_path / "disk" / "root").chmod(0o3775)
    study.chmod(0o775)
    assert opened(study) == [study]


@pytest.mark.refused
def test_a_study_that_others_can_write_to_is_refused_even_with_the_sticky_bit(study):
    study.chmod(0o3775)
    with pytest.raises(UserError, match="chmod -R go-w"):
        guard.require_own(study)


@pytest.mark.refused
def test_what_belongs_to_another_user_is_refused(study):
    (inside := study / ".code").mkdir()
    os.chown(inside, 54321, -1)
    with pytest.raises(UserError, match="belongs to user 54321, who could run code as you"):
        guard.require_own(study, inside)


@pytest.mark.refused
def test_a_file_that_another_user_wrote_or_could_write_is_refused_also_behind_a_link(study):
    (file := study / "start.py").write_bytes(b"mine")
    (link := study / "link.py").symlink_to(file)
    guard.require_written(link, b"mine", study)
    with pytest.raises(UserError, match="was changed by somebody else just now"):
        guard.require_written(link, b"what was read before", study)
    os.chown(file, 54321, -1)
    for path in (file, link):
        with pytest.raises(UserError, match=f"{path} belongs to user 54321"):
            guard.require_written(path, b"mine", study)


@pytest.mark.parametrize(
    ("group", "private"),
    [(("me", []), True), (("me", ["me"]), True), (("me", ["you"]), False), (("lab", []), False)],
)
def test_a_group_of_ones_own_is_not_others(study, tmp_path, monkeypatch, group, private):
    monkeypatch.setattr(guard.pwd, "getpwuid", lambda number: SimpleNamespace(pw_name="me"))
    monkeypatch.setattr(
        guard.grp, "getgrgid", lambda number: SimpleNamespace(gr_name=group[0], gr_mem=group[1])
    )
    (tmp_path / "lab").chmod(0o775)
    assert [holder for _, _, holder in guard.replaceable([study])] == (
        [] if private else [f"group {group[0]}"]
    )


def lists(**kinds):
    """Access control lists of a folder, as the kernel takes them: (whom it is for, permissions, id)."""
    for kind, entries in kinds.items():
        packed = b"".join(struct.pack("<HHI", *entry) for entry in entries)
        yield f"system.posix_acl_{kind}", struct.pack("<I", 2) + packed


NOBODY = 2**32 - 1  # an entry for no one user or group
OPEN = [(1, 7, NOBODY), (4, 7, NOBODY), (8, 7, GROUP), (16, 7, NOBODY), (32, 5, NOBODY)]


@pytest.fixture
def listed(tmp_path):
    """A folder whose access control lists let a group write to it and to all that is created in it."""
    (folder := tmp_path / "listed").mkdir()
    try:
        for name, content in lists(access=OPEN, default=OPEN):
            os.setxattr(folder, name, content)
    except OSError as error:
        pytest.skip(f"access control lists: {error.strerror}")
    return folder


def test_what_is_made_below_a_default_access_control_list_is_closed_and_so_is_all_in_it(listed):
    """Such a list overrides the umask."""
    (listed / "plain").mkdir()
    assert (listed / "plain").stat().st_mode & 0o022, "the list works"
    guard.make_folder(study := listed / "runs" / "study")
    (study / "folder").mkdir()
    (study / "file").touch()
    for path in (study.parent, study, study / "folder", study / "file"):
        assert not path.stat().st_mode & 0o022, path
    guard.require_own(study, study / "folder", study / "file")


def test_a_folder_whose_list_names_another_group_is_not_private(listed, monkeypatch):
    monkeypatch.setattr(guard.pwd, "getpwuid", lambda number: SimpleNamespace(pw_name="me"))
    monkeypatch.setattr(guard.grp, "getgrgid", lambda number: SimpleNamespace(gr_name="me", gr_mem=[]))
    assert [place for _, place, _ in guard.replaceable([listed / "study"])] == [listed]


@pytest.mark.parametrize(("mask", "closed"), [(0o002, 0o022), (0o000, 0o022), (0o077, 0o077)])
def test_a_umask_is_closed_and_never_opened(mask, closed):
    previous = os.umask(mask)
    try:
        guard.close_umask()
        assert os.umask(mask) == closed
    finally:
        os.umask(previous)
