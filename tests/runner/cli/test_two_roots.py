"""What was made of one root is never replaced by what is made of another, unless somebody asks for it."""

import pytest

from analysis.report.build import certificates_page
from analysis.store.collect import collect
from model.record.errors import UserError
from tests.analysis.fabricate import certificate, completed


@pytest.fixture
def roots(tmp_path):
    """Two roots with runs of studies of the same names."""
    for name in ("a", "b"):
        completed(tmp_path / name, "r1", study="tiny")
        completed(tmp_path / name, "r2", study="other")
    return tmp_path / "a", tmp_path / "b"


@pytest.mark.parametrize(
    ("command", "place"),
    [
        ("report tiny --no-logs", "reports/build/tiny"),
        ("export tiny", "exports/tiny"),
        ("compare tiny other --html pair", "pair"),
    ],
)
def test_what_is_there_of_another_root_stays_and_both_are_named(cli, roots, tmp_path, command, place):
    a, b = roots
    for _ in range(2):
        assert cli(*command.split(), root=a).code == 0, "its own may be made again"
    files = {path: path.read_bytes() for path in (tmp_path / place).rglob("*") if path.is_file()}
    refused = cli(*command.split(), root=b)
    assert refused.code == 2
    assert str(a) in refused.err and str(b) in refused.err and "--replace" in refused.err
    assert files == {path: path.read_bytes() for path in (tmp_path / place).rglob("*") if path.is_file()}
    assert cli(*command.split(), "--replace", root=b).code == 0
    assert cli(*command.split(), root=a).code == 2


def test_another_comparison_stays(cli, roots):
    a, _ = roots
    completed(a, "r3", study="third")
    assert cli("compare", "tiny", "other", "--html", "pair", root=a).code == 0
    refused = cli("compare", "tiny", "third", "--html", "pair", root=a)
    assert (
        "pair has the comparison of tiny and other: name another folder, or replace it with --replace"
        in refused.err
    )


def test_a_page_of_certificates_stays(roots, tmp_path):
    for root in roots:
        certificate(root, "auto", case=None)
        collect(root)
    certificates_page(roots[0], tmp_path / "page")
    with pytest.raises(UserError, match=f"made from {roots[0]}, and this one is made from {roots[1]}"):
        certificates_page(roots[1], tmp_path / "page")


def test_batch_scripts_of_another_root_stay(cli, roots, study, tmp_path):
    command = ("launch", study(name="mine"), "-p", "h100", "--dry-run", "--scripts", "scripts")
    assert cli(*command, root=roots[0]).code == cli(*command, root=roots[0]).code == 0
    refused = cli(*command, root=roots[1])
    assert refused.code == 2 and "mine-1.sh is no script of this study and root" in refused.err


def test_a_report_and_its_root_can_move_together(cli, roots, tmp_path):
    assert cli("report", "tiny", "--out", "a/page", root=roots[0]).code == 0
    roots[0].rename(tmp_path / "moved")
    assert cli("report", "tiny", "--out", "moved/page", root=tmp_path / "moved").code == 0
