"""The five tests of a published report: each is failed by a backend with its fault, and shown with its value."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from html import unescape
from pathlib import Path

import pytest
import torch

from analysis.audit.audit import audit
from analysis.query.ask import ask
from analysis.report.backends import queries
from analysis.report.build import build_report, certificates_page
from analysis.store.collect import collect, collect_certificates
from analysis.wording import UNKNOWN
from analysis.writeup.write import write
from model import attention
from model.attention import Case
from model.attention.verify import accuracy
from model.attention.verify.cases import Variant
from model.attention.verify.certificate import Check
from model.training import same_model
from tests.analysis.fabricate import Folder, certificate, check, plan
from tests.analysis.report.test_build import words
from tests.model.attention.verify.planted import CASE, backward, right, right_backend

LOGITS, LOSS, GRADIENTS = "Logits, allclose", "Loss, relative difference", "Gradients, allclose"
FINITE = "Outputs and gradients with NaN or infinity"
CHECKPOINT = "Logits from a checkpoint of the other, relative difference"
TESTS = [LOGITS, LOSS, GRADIENTS, FINITE, CHECKPOINT]


def certified(root: Path, name: str, attend: Callable[..., torch.Tensor] = right, case: Case = CASE) -> None:
    """A certificate whose checks are real: of a call on random data, one on huge logits, and a small llama."""
    backend = replace(right_backend, attend=attend)
    checks = [
        entry for data in ("plain", "huge logits") for entry in accuracy.check(backend, Variant(case, data))
    ]
    checks += same_model.check("math", backend, case)
    verdict = "right" if all(entry.passed for entry in checks) else "wrong"
    record = certificate(root, name, verdict, checks=checks, case=case, device="cpu", device_name="a CPU")
    Folder(root, plan(f"r-{name}", attention=name)).start(certificate=record.key, device_name="a CPU")


def rows_of(root: Path) -> dict[str, dict[str, object]]:
    """The rows of the only certificate, by test."""
    collect(root)
    sql = queries()["Correctness tests"].replace("$study", "'backends'")
    rows = ask(root, sql).records()
    assert [row["test"] for row in rows] == TESTS
    return {row["test"]: row for row in rows}


def heads_for_tokens(q, k, v, causal):
    """The fault of seeds/000."""
    group = q.shape[2] // k.shape[2]
    k, v = (x.repeat_interleave(group, 2) for x in (k, v))
    return right(*(x.transpose(1, 2) for x in (q, k, v)), causal).transpose(1, 2)


def much_of_other_tokens(q, k, v, causal):
    return 10 * right(q, k, v, causal).roll(1, 1)


def wrong_dk(q, k, v, causal):
    return right(q, backward(k, lambda d: d * 1.2), v, causal)


def overflowing(q, k, v, causal):
    return right(q, k, v, causal, change=lambda s: s.masked_fill(s > 60, torch.inf))


def other_in_evaluation(q, k, v, causal):
    return right(q, k, v, causal) * (1 if torch.is_grad_enabled() else 1.1)


@pytest.mark.refused
@pytest.mark.parametrize(
    ("attend", "failed"),
    [
        (heads_for_tokens, {LOGITS, GRADIENTS, CHECKPOINT}),  # the loss of weights that are random hides this
        (much_of_other_tokens, {LOGITS, LOSS, GRADIENTS, CHECKPOINT}),
        (wrong_dk, {GRADIENTS}),
        (overflowing, {FINITE}),
        (other_in_evaluation, {CHECKPOINT}),
    ],
)
def test_a_fault_fails_its_own_test(
    tmp_path: Path, attend: Callable[..., torch.Tensor], failed: set[str]
) -> None:
    certified(tmp_path, "planted", attend)
    rows = rows_of(tmp_path)
    assert {test for test, row in rows.items() if row["result"] == "failed"} == failed
    assert {test for test, row in rows.items() if row["result"] == "passed"} == {*TESTS} - failed
    assert {test for test, row in rows.items() if row["measured"] > row["tolerance"]} == failed


def test_of_a_backend_that_is_right_all_pass(tmp_path: Path) -> None:
    certified(tmp_path, "honest")
    for test, row in rows_of(tmp_path).items():
        assert (row["result"], row["precision"]) == ("passed", "float32")
        assert (row["plain"] is not None) == ("allclose" in test)


def test_in_bfloat16_allclose_is_shown_beside_that_of_math_and_not_judged(tmp_path: Path) -> None:
    certified(tmp_path, "tiled", attention.load("tiled").attend, replace(CASE, dtype="bfloat16"))
    rows = rows_of(tmp_path)
    for test in (LOGITS, GRADIENTS):
        row = rows.pop(test)
        assert (row["result"], row["tolerance"], row["precision"]) == ("not judged", None, "bfloat16")
        assert row["measured"] > 1 and row["plain"] > 1
    assert {row["result"] for row in rows.values()} == {"passed"}


def cells(page: Path) -> list[list[str]]:
    """The table's rows."""
    html = page.read_text(encoding="utf-8").partition('aria-label="Table: Five correctness tests"')[2]
    rows = html.partition("<tbody>")[2].partition("</tbody>")[0].split("</tr>")[:-1]
    return [
        [unescape(re.sub(r"<[^>]*>", "", cell)) for cell in re.findall(r"<t[hd].*?</t[hd]>", row)]
        for row in rows
    ]


def test_pages_and_the_write_up_show_value_tolerance_and_result(tmp_path: Path) -> None:
    certified(tmp_path, "planted", overflowing)
    collect(tmp_path)
    out = build_report(tmp_path, "backends", tmp_path / "out", extra=write).parent
    assert audit(out).findings == []
    for page in ("certificates.html", "print.html"):
        table = cells(out / page)
        assert [row[:2] for row in table] == [["planted", test] for test in TESTS]
        assert table[3][2:] == ["float32", "4 of 8", UNKNOWN, "0", "failed"]
        assert table[1][5:] == ["0.005", "passed"]
    text = words(out / "certificates.html")
    assert "|x \N{MINUS SIGN} math| / (0.001 + 0.001 |math|)" in text
    assert "Not judged" not in text
    latex = (out / "latex" / "tables" / "correctness.tex").read_text()
    assert (
        r"planted & Outputs and gradients with NaN or infinity & float32 & 4 of 8 & -- & 0 & failed \\"
        in latex
    )
    assert r"\input{tables/correctness}" in (out / "latex" / "report.tex").read_text()


def test_what_an_old_certificate_does_not_record_was_not_checked(tmp_path: Path) -> None:
    old_certificate = certificate(tmp_path, "flash")  # its only check of a llama is that of the loss
    file = tmp_path / ".certificates" / f"{old_certificate.key}.json"
    record = json.loads(file.read_text())
    for entry in record["checks"]:
        del entry["plain"]
    file.write_text(json.dumps(record))
    Folder(tmp_path, plan("r1", attention="flash")).start(certificate=old_certificate.key)
    results = {test: row["result"] for test, row in rows_of(tmp_path).items()}
    assert results == {LOGITS: "not checked", LOSS: "passed", GRADIENTS: "not checked", FINITE: "passed",
                       CHECKPOINT: "not checked"}  # fmt: skip
    page = build_report(tmp_path, "backends", tmp_path / "out").with_name("certificates.html")
    assert cells(page)[0] == ["flash", LOGITS, UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN, "not checked"]


def test_logits_that_are_not_finite_are_shown_as_such(tmp_path: Path) -> None:
    checks = [
        Check(
            name="allclose", what="logits", case="T4 bfloat16", variant="plain", passed=False, reason="nan"
        ),
        check("checkpoint", "from it to math", passed=False, reason="weights changed"),
        check("checkpoint outputs", "from it to math", measured=0.0, tolerance=0.1),
    ]
    record = certificate(tmp_path, "flash", "wrong", checks=checks, case=None)
    Folder(tmp_path, plan("r1", attention="flash")).start(certificate=record.key)
    collect(tmp_path)
    page = build_report(tmp_path, "backends", tmp_path / "out").with_name("certificates.html")
    values = {row[1]: row[3:] for row in cells(page)}
    assert values[LOGITS] == ["not finite", UNKNOWN, UNKNOWN, "failed"]
    assert values[CHECKPOINT] == ["0", UNKNOWN, "0.1", "failed"]


def test_a_backend_that_does_not_run_here_has_no_tests(tmp_path: Path) -> None:
    certificate(tmp_path, "flash4", "unsupported", case=None)
    collect_certificates(tmp_path)
    index = certificates_page(tmp_path, tmp_path / "out")
    assert "Five correctness tests" not in words(index)
    certificate(tmp_path, "flash", case=None)
    collect_certificates(tmp_path)
    assert [row[0] for row in cells(certificates_page(tmp_path, tmp_path / "out"))] == ["flash"] * 5
