"""The pages that say whether the backends are what they claim to be: of a study, and of a machine."""

from __future__ import annotations

import csv
import re
from html import unescape
from pathlib import Path
from urllib.parse import urldefrag

import pytest

from analysis.audit.audit import audit
from analysis.query.ask import ask
from analysis.report.backends import MOST_DETAILED, Backends, short_kernels
from analysis.report.build import build_report, certificates_page
from analysis.store.collect import collect, collect_certificates
from analysis.wording import UNKNOWN
from model.record.errors import UserError
from tests.analysis.demo import certify
from tests.analysis.fabricate import Folder, certificate, check, number, plan
from tests.analysis.report.test_build import EVIL, Page, words


def row_of(page: Path, backend: str) -> list[str]:
    """The first cells of a backend's row in the table of verdicts."""
    table = (
        page.read_text(encoding="utf-8")
        .partition('aria-label="Table: Verdict on each backend"')[2]
        .partition("</table>")[0]
    )
    markup = next(row for row in table.split("<tr>") if f">{backend}</a>" in row)
    return [
        unescape(re.sub(r"<[^>]*>", "", cell)).strip() for cell in re.findall(r"<t[hd].*?</t[hd]>", markup)
    ]


def test_each_backend_has_its_verdict_errors_and_kernels(demo_report: Path) -> None:
    page = demo_report / "certificates.html"
    assert row_of(page, "auto")[:2] == ["auto", "right"]
    assert row_of(page, "flash3")[:2] == ["flash3", "wrong"]
    assert row_of(page, "flash4")[:3] == ["flash4", "unsupported", UNKNOWN]
    text = unescape(words(page))
    for expected in (
        "8 right, 1 wrong, 1 unsupported, 1 without a certificate",
        "flash3 is wrong in bfloat16 on NVIDIA H200. 25 of 53 checks failed",
        "own kernels: its forward runs flash2's",
        "flash4: needs a GPU of compute capability 10.0, this is 9.0",
        "all 53 checks passed",
        "void flash::fwd_kernel<flash::Flash_fwd_kernel_traits<128",
        "head dim 256; it takes up to 128",
        "for B1 T4096 H32 K8 D128 bfloat16 causal",
        "triton 3.5.0",
        "flash3 : no certificate: the records name none",
    ):
        assert expected in text, expected


def test_numbers_of_the_table_are_those_of_the_database(demo: Path, demo_report: Path) -> None:
    row = row_of(demo_report / "certificates.html", "cudnn")
    (record,) = ask(demo, "SELECT o_error, ratio, checks FROM certificate_errors e JOIN certificates c "
                         "ON c.key = e.certificate WHERE attention = 'cudnn'").records()  # fmt: skip
    assert row[2] == f"{record['o_error']:.1e}"
    assert row[6] == f"{record['ratio']:.2f}"
    assert row[7] == str(record["checks"])


def test_every_number_carries_its_sql(demo: Path, demo_report: Path) -> None:
    text = (demo_report / "certificates.html").read_text(encoding="utf-8")
    blocks = re.findall(r"<summary>SQL(?:: (.*?))?</summary>\s*<pre[^>]*><code>(.*?)</code>", text, re.S)
    assert [title for title, _ in blocks] == [
        "certificates", "correctness tests", "errors by tensor", "checks by kind", "runs without a certificate", "",
    ]  # fmt: skip
    answers = [ask(demo, unescape(sql)).records() for _, sql in blocks]
    assert [len(answer) for answer in answers[:3]] == [10, 45, 36]
    assert {row["attention"] for row in answers[4]} == {"flash3"}
    with (demo_report / "data" / "verdicts.csv").open(encoding="utf-8") as file:
        assert [row["key"] for row in csv.DictReader(file)] == [row["key"] for row in answers[0]]


def test_a_run_leads_to_its_certificate(demo: Path, demo_report: Path) -> None:
    anchors = set(Page(demo_report / "certificates.html").all("id"))
    for pages in (["index.html"], [path.name for path in demo_report.glob("run-*.html")]):
        links = [urldefrag(link) for page in pages for link in Page(demo_report / page).all("href")]
        cited = {anchor for target, anchor in links if target == "certificates.html" and anchor}
        assert cited <= anchors
        assert {row[0] for row in ask(demo, "SELECT key FROM certificates").rows} <= cited
        assert "without" in cited
    sentence = "Completed runs of these backends have no valid certificate: flash3."
    assert sentence in words(demo_report / "index.html")
    assert (
        "flash3 computes attention in bfloat16 wrongly on NVIDIA H200: 25 of 53 checks of its certificate failed"
        in words(demo_report / "index.html")
    )
    assert re.search(r"flash3 FlashAttention-3.*? wrong ; 3 runs without", words(demo_report / "index.html"))


def test_audits_during_runs_are_counted_by_certificate(tmp_path: Path) -> None:
    for attention, errors in (("auto", (0.4, 0.6)), ("flash", (0.4, 8.0)), ("cudnn", ())):
        folder = Folder(tmp_path, plan(f"r-{attention}", attention=attention))
        folder.start(certificate=certificate(tmp_path, attention).key)
        for place, error in enumerate(errors):
            folder.audit(10 + place, dv=error)
        folder.end("failed" if 8.0 in errors else "completed")
    collect(tmp_path)
    out = build_report(tmp_path, "backends", tmp_path / "out").parent
    page = out / "certificates.html"
    assert [row_of(page, name)[-2:] for name in ("auto", "flash", "cudnn")] == [
        ["1", "2 of 2"],
        ["1", "1 of 2"],
        ["1", UNKNOWN],
    ]
    assert "1 of 2 passed; the largest measured / allowed is 10" in words(page)
    assert "2 of 2 passed; the largest measured / allowed is 0.75" in words(out / "run-r-auto.html")
    assert "Audits: none in the records." in words(out / "run-r-cudnn.html")
    assert audit(out).findings == []


def test_a_backend_that_was_never_called_needs_no_certificate(tmp_path: Path) -> None:
    for backend, outcome in (("flash3", "unsupported"), ("math", "completed"), ("flex", "oom_gpu")):
        folder = Folder(tmp_path, plan(f"r-{backend}", attention=backend))
        folder.start()
        folder.end(outcome)
    collect(tmp_path)
    text = words(build_report(tmp_path, "backends", tmp_path / "out").with_name("certificates.html"))
    assert "flash3 : no certificate: unsupported, and never called" in text
    assert "math : no certificate: the records name none" in text
    assert "flex : no certificate: oom_gpu before there was one" in text


def test_a_certificate_that_is_named_but_gone_or_torn_is_said_to_be(tmp_path: Path) -> None:
    torn = certificate(tmp_path, "flash").key
    (tmp_path / ".certificates" / f"{torn}.json").write_text("{")
    for backend, key in (("math", "a" * 64), ("flash", torn)):
        Folder(tmp_path, plan(f"r-{backend}", attention=backend)).start(certificate=key)
    collect(tmp_path)
    text = words(build_report(tmp_path, "backends", tmp_path / "out").with_name("certificates.html"))
    assert f"the certificate {'a' * 64} is not among the records" in text
    assert f"the certificate {torn} is not valid for these runs: Invalid JSON" in text
    assert "2 without a certificate" in text


def test_a_certificate_of_another_backend_or_device_speaks_for_no_run(tmp_path: Path) -> None:
    flash = certificate(tmp_path, "flash").key
    h100 = certificate(tmp_path, "math", device_name="NVIDIA H100").key
    for backend, key in (("auto", flash), ("math", h100), ("flash", flash)):
        Folder(tmp_path, plan(f"r-{backend}", attention=backend)).start(certificate=key)
    collect(tmp_path)
    verdicts = ask(tmp_path, "SELECT run_id, verdict FROM runs ORDER BY run_id").rows
    assert verdicts == (("r-auto", None), ("r-flash", "right"), ("r-math", None))
    text = words(build_report(tmp_path, "backends", tmp_path / "out").with_name("certificates.html"))
    assert f"the certificate {flash} is not valid for these runs: it is for flash on NVIDIA H200" in text
    assert f"the certificate {h100} is not valid for these runs: it is for math on NVIDIA H100" in text


def test_a_study_that_has_not_started_says_so(tmp_path: Path) -> None:
    Folder(tmp_path, plan("r1"))
    collect(tmp_path)
    text = words(build_report(tmp_path, "backends", tmp_path / "out").with_name("certificates.html"))
    assert "No run of this study has started." in text
    assert "Nothing here shows" not in text


def test_text_from_a_certificate_is_inert(tmp_path: Path) -> None:
    checks = [
        number("o", 9.0, variant=EVIL, case=EVIL, name=EVIL),
        check(EVIL, EVIL, passed=False, reason=EVIL),
    ]
    record = certificate(
        tmp_path, EVIL, "wrong", device_name=EVIL, software={EVIL: EVIL}, code=EVIL, reasons=[EVIL],
        kernels={"forward": [EVIL], EVIL: [EVIL]}, not_looked_at=[EVIL], checks=checks, case=None,
    )  # fmt: skip
    Folder(tmp_path, plan("r1")).start(certificate=record.key)
    collect(tmp_path)
    study = build_report(tmp_path, "backends", tmp_path / "out").with_name("certificates.html")
    for path in (study, certificates_page(tmp_path, tmp_path / "machine")):
        page, text = Page(path), path.read_text(encoding="utf-8")
        assert all("onerror" not in attributes for _, attributes in page.tags)
        assert "<script>alert" not in text
        assert "\u2028" not in "".join(re.findall(r'<script type="application/json">(.*?)</script>', text))
        assert "49" not in re.findall(r"<title>(.*?)</title>", text, re.S)[0]


def test_a_machines_page_stands_alone(tmp_path: Path) -> None:
    for backend in ("auto", "flash3", "flash4"):
        certify(tmp_path, backend, case=None, git_sha="a1b2c3d4e5f6", git_dirty=True)
    certify(tmp_path, "math")  # a run's: no word on all that math supports
    collect_certificates(tmp_path)
    index = certificates_page(tmp_path, tmp_path / "deep" / "machine")
    text = words(index)
    assert "Attention backends on NVIDIA H200" in text
    assert "1 right, 1 wrong, 1 unsupported." in text
    assert "Commit a1b2c3d4e5 with uncommitted changes" in text
    assert "for everything that the backend supports" in text
    assert "math" not in {cell for name in ("auto", "flash3") for cell in row_of(index, name)}
    for link in (*Page(index).all("href"), *Page(index).all("src")):
        target, anchor = urldefrag(link)
        assert link.startswith("data:") or not target or (index.parent / target).exists(), link
        assert not anchor or anchor in Page(index).all("id")


def test_a_machine_that_nobody_verified_is_a_users_error(tmp_path: Path) -> None:
    certificate(tmp_path, "math")
    collect_certificates(tmp_path)
    with pytest.raises(UserError, match="run `runner verify` first"):
        certificates_page(tmp_path, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("names", "short"),
    [
        (["void flash::fwd<traits<128, false>, true>(flash::params)"], ["flash::fwd"]),
        (["void a::k<1>(int)", "void a::k<2>(int)"], ["a::k \N{MULTIPLICATION SIGN} 2"]),
        (
            ["void cutlass::device_kernel<flash::enable_sm90<flash::Fwd<2> > >(x)"],
            ["cutlass::device_kernel<flash::enable_sm90<flash::Fwd>>"],
        ),
        (["void at::(anonymous namespace)::soft<float>(float*)"], ["at::soft"]),
        (["_forward_kernel"], ["_forward_kernel"]),
        (["<img>", "", "((("], ["<img>", "", "((("]),
    ],
    ids=["arguments", "counted", "generic", "anonymous", "plain", "no name"],
)
def test_kernels_have_short_names(names: list[str], short: list[str]) -> None:
    assert short_kernels(names) == short


def test_of_very_many_certificates_those_of_interest_have_a_section_and_the_table_has_all() -> None:
    def row(place: int, verdict: str = "right") -> dict[str, str]:
        return {"key": f"k{place}", "attention": f"b{place % 2}", "verdict": verdict}

    at_limit = Backends([row(place) for place in range(MOST_DETAILED)], [], [])
    assert len(at_limit.detailed) == MOST_DETAILED
    rows = [*(row(place) for place in range(MOST_DETAILED)), row(200, "wrong"), row(202, "wrong")]
    above_limit = Backends(rows, [], [], frozenset({"k7"}))
    assert above_limit.detailed == {"k0", "k1", "k7", "k200", "k202"}
