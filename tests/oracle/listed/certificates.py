"""Kinds of certificates: checks, errors, and runs without one."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from tests.oracle.kinds import NONE
from tests.oracle.listed.facts import certificates, names_certificate
from tests.oracle.listed.overview import certificate_of, moment
from tests.oracle.listing import Cell, Spot, column, text
from tests.oracle.truth import (
    Run,
    Study,
)


@text(r"Of this study's backends: .*")
def backends_of_study(spot: Spot, match: re.Match[str]) -> str:
    return f"Of this study's backends: {certified(spot.study)}."


def certified(study: Study) -> str:
    """`1 wrong, 1 without a certificate`."""
    backends_by_verdict: dict[str, set[str]] = {}
    for run in study.runs:
        if run.attempts and run.measured.manifest:
            backends = {row["attention"] for row in run.kernels if row["outcome"] == "completed"}
            backends |= {run.config["attention"]} - {None} if study.task != "attention" else set()
            for backend in backends:
                backends_by_verdict.setdefault(verdict_of(study, run, backend), set()).add(backend)
    uncertified = backends_by_verdict.pop("none", set())
    parts = [f"{len(names)} {verdict}" for verdict, names in backends_by_verdict.items()]
    return ", ".join([*parts, *([f"{len(uncertified)} without a certificate"] if uncertified else [])])


def verdict_of(study: Study, run: Run, backend: str) -> str:
    """Of the certificate that a run, or its calls of a backend, name."""
    keys = {row.get("certificate") for row in run.kernels if row["attention"] == backend} - {None}
    for key in keys:
        return str(study.certificate_of_key(run, key)["verdict"])
    return certificate_of(study, run)


def share(check: dict[str, Any]) -> float:
    """Of what is allowed; nothing is, where only the size of an error is stated."""
    return float(check["measured"]) / float(check["tolerance"]) if check["tolerance"] else 0.0


@text(r"\S+ is wrong on .*|wrong: \d+ of \d+ checks failed\.|right: .* is off|.* float64.*")
@text(r"On .*, for everything that the backend supports\. Relative errors.*", "caption")
@text(r"Relative errors: .*", "caption")
@text(r"Five tests of each backend\. .*", "caption")
@text(r"Five tests of a published comparison .*", "p")
@text(r"Dot plot of error over tolerance .*", "figcaption")
@text(r"(?:Made|Runs|Checked): .*", "dl.facts")
@text(r"\S+ [0-9a-f]{12}", "h2")
@text(r"Key: [0-9a-f]+", "dl.facts")
@text(r"right: all \d+ checks passed\.", "p")
def certificate_texts(spot: Spot, match: re.Match[str]) -> Iterator[str]:
    largest: list[str] = []
    for certificate in certificates(spot.study):
        checks: list[dict[str, Any]] = certificate["checks"]
        failed = [check for check in checks if not check["passed"]]
        worst = max(map(share, checks))
        name, device = certificate["backend"], certificate["device_name"]
        yield f"{name} is wrong on {device}. {len(failed)} of {len(checks)} checks failed. Its certificate lists them all; the first are:"
        yield f"wrong: {len(failed)} of {len(checks)} checks failed."
        yield from (f"{check['name']}: {check['reason']}" for check in failed)
        yield f"On {device}, for everything that the backend supports. Relative errors: the largest on random data. Measured / allowed: the largest over all checks; up to 1 passes."
        yield f"Five tests of each backend. On {device}, for everything that the backend supports"
        largest.append(f"{name} {worst}")
        yield f"Dot plot of error over tolerance by backend and tensor. Largest: {'; '.join(largest)}."
        yield f"right: all {len(checks)} checks passed."
        yield f"Key: {certificate['key']}"
        yield f"Made: {moment(str(certificate['created_at']))}, in {certificate['seconds']} s"
        yield f"Runs: {', '.join(run.id for run in spot.study.done if names_certificate(spot.study, run))}"
        yield f"{name} {str(certificate['key'])[:12]}"
    yield "Relative errors: the largest on random data. Measured / allowed: the largest over all checks; up to 1 passes."
    rules = (
        "A certificate compares what a backend computes, forward and backward, with exact results in float64.",
        "While a run trains or decodes, audits check attention calls of its own model",
        "It is called on random numbers,",
        "Five tests of a published comparison",
    )
    yield from (match[0] for rule in rules if match[0].startswith(rule))


def timed(run: Run) -> set[str]:
    """Backends that it called."""
    if "call" not in run.config:
        return {run.config["attention"]}
    return {row["attention"] for row in run.kernels if row["outcome"] == "completed"} or {"unknown"}


TENSORS = {"output": "o", "dq": "dq", "dk": "dk", "dv": "dv"}


def check_of(study: Study, tensor: str, backend: str) -> dict[str, Any]:
    """The worst check of a tensor in a backend's certificate, with its relative error on random data."""
    (certificate,) = (entry for entry in certificates(study) if entry["backend"] == backend)
    checks = [
        entry
        for entry in certificate["checks"]
        if entry["what"] == TENSORS[tensor.lower()] and entry["tolerance"]
    ]
    relative_errors = [entry["relative_error"] for entry in checks if entry["variant"] == "plain"]
    return {**max(checks, key=share), "relative_error": max(relative_errors)}


@column(r"(?:On .*)?Relative errors: .*", ".+")
def certificate_cells(cell: Cell) -> str:
    study_certificates = certificates(cell.spot.study)
    if cell.head == "Verdict":
        verdicts = [
            f"{certificate['verdict']}"
            for certificate in study_certificates
            if certificate["backend"] == cell.first
        ]
        imported = ": imported" if cell.spot.study.imported else ""
        return verdicts[0] if verdicts else f"no certificate{imported}"
    if not any(certificate["backend"] == cell.first for certificate in study_certificates):
        runs = [run for run in cell.spot.study.runs if run.attempts and cell.first in timed(run)]
        return f"{len(runs)}" if cell.head == "Runs" else NONE
    (checks,) = (
        certificate["checks"] for certificate in study_certificates if certificate["backend"] == cell.first
    )
    if cell.head.lower() in TENSORS:
        return f"{check_of(cell.spot.study, cell.head, cell.first)['relative_error']:.9e}"
    return {
        "Measured / allowed": f"{max(map(share, checks))}",
        "Checks": f"{len(checks)}",
        "Failed": f"{sum(not check['passed'] for check in checks)}",
        "Runs": f"{sum(names_certificate(cell.spot.study, run) for run in cell.spot.study.done)}",
    }[cell.head]


@column(r"Certificates: values", ".+")
def error_cells(cell: Cell) -> str:
    tensors = list(TENSORS) if cell.head == "largest" else [cell.head]
    (certificate,) = (entry for entry in certificates(cell.spot.study) if entry["backend"] == cell.first)
    checked = {check["what"] for check in certificate["checks"]}
    checks = [
        check_of(cell.spot.study, tensor, cell.first)
        for tensor in tensors
        if TENSORS[tensor.lower()] in checked
    ]
    return f"{max(map(share, checks))}"


@column(r"Errors of \S+", "Relative error", "Measured / allowed", "Measured", "Allowed")
def tensor_cells(cell: Cell) -> str:
    check = check_of(cell.spot.study, cell.first, cell.caption.rpartition(" ")[2])
    return {
        "Relative error": f"{check['relative_error']:.9e}",
        "Measured / allowed": f"{check['measured'] / check['tolerance']}",
        "Measured": f"{check['measured']}",
        "Allowed": f"{check['tolerance']}",
    }[cell.head]


@column(r"Checks by kind", ".+")
def check_cells(cell: Cell) -> str:
    checks = [
        check
        for certificate in certificates(cell.spot.study)[:1]  # all of a study have as many
        for check in certificate["checks"]
        if check["name"] == cell.first
    ]
    return {
        "Kind": cell.first,
        "Checks": f"{len(checks)}",
        "Failed": f"{sum(not check['passed'] for check in checks)}",
    }[cell.head]


@text(r"(?P<backend>\S+): no certificate: .* \N{EN DASH} (?P<runs>.+)", "li")
def bare_runs(spot: Spot, match: re.Match[str]) -> str:
    study, backend = spot.study, match["backend"]
    runs = [
        run for run in study.runs if run.attempts and not study.certificate(run) and backend in timed(run)
    ]
    names = [match["runs"]] if study.imported and len(runs) == 1 else [run.id for run in runs]
    return match[0].replace(match["runs"], ", ".join(names))
