"""Which folders let others decide what runs as this user."""

import os
from types import SimpleNamespace

import pytest

from model.errors import UserError
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


def test_folders_that_only_their_owner_can_write_to_are_right(study):
    guard.require_own(study)


@pytest.mark.refused
@pytest.mark.parametrize("mode", [0o775, 0o757, 0o2775])
@pytest.mark.parametrize("above", ["lab", "disk", "disk/root"])
def test_every_folder_on_the_way_to_a_study_counts_also_behind_links(study, tmp_path, above, mode):
    (tmp_path / above).chmod(mode)
    with pytest.raises(UserError, match=r"is writable by others, who could replace .*chmod \+t"):
        guard.require_own(study)
    (tmp_path / above).chmod(mode | 0o1000)
    guard.require_own(study)


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
    if private:
        guard.require_own(study)
    else:
        with pytest.raises(UserError, match="writable by others"):
            guard.require_own(study)


@pytest.mark.parametrize(("mask", "closed"), [(0o002, 0o022), (0o000, 0o022), (0o077, 0o077)])
def test_a_umask_is_closed_and_never_opened(mask, closed):
    before = os.umask(mask)
    try:
        guard.close_umask()
        assert os.umask(mask) == closed
    finally:
        os.umask(before)
