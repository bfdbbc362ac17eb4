"""What a report says about the backends: their certificates and what these contain."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from operator import itemgetter
from typing import TYPE_CHECKING

from analysis.charts.certificates import OF_STUDY, RUNS, TENSORS
from analysis.report.facts import Row, literal, rows
from analysis.stats import grouped
from analysis.verdicts.values import commit

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

_OF_MACHINE = "SELECT certificate FROM backends"
MACHINE_TENSORS = TENSORS.replace("$certificates", _OF_MACHINE).replace(RUNS, "")
# The audits of these runs, likewise.
_AUDITS = ", u.audits, u.audits_passed, u.audit_ratio"
_AUDITED = """
LEFT JOIN (
  SELECT a.certificate, count(*) AS audits, count(*) FILTER (passed) AS audits_passed,
    max(ratio) AS audit_ratio
  FROM audits JOIN attempts a USING (study, run_id, attempt) WHERE study = $study GROUP BY a.certificate
) u ON u.certificate = c.key"""
_CERTIFICATES = f"""\
SELECT c.*, e.* EXCLUDE (certificate){_AUDITS}{RUNS}
FROM certificates c LEFT JOIN certificate_errors e ON e.certificate = c.key{_AUDITED}
WHERE c.key IN ($certificates)
ORDER BY c.attention, c.device_name, c.shape, c.created_at, c.key"""
_KINDS = """\
SELECT certificate, name, count(*) AS checks, count(*) FILTER (NOT passed) AS failed
FROM verifications WHERE certificate IN ($certificates)
GROUP BY certificate, name ORDER BY certificate, min(place)"""
_QUERIES = {"Certificates": _CERTIFICATES, "Errors by tensor": TENSORS, "Checks by kind": _KINDS}
MOST_DETAILED = 100  # certificates that each have a section of the page
_GENERIC = {"device_kernel", "Kernel", "Kernel2", "enable_sm90"}  # say what they run in their first argument
# Runs that have started and have no valid certificate; of attention alone, a backend that has none there.
_WITHOUT = """\
SELECT r.attention, r.run_id, r.certificate,
  r.imported IS NOT NULL AS imported,
  coalesce(q.reason, 'it is for ' || c.attention || ' on ' || coalesce(c.device_name, 'no device')) AS reason
FROM runs r
LEFT JOIN certificates c ON c.key = r.certificate
LEFT JOIN quarantine q ON q.study = '.certificates' AND q.run_id = r.certificate
WHERE r.study = $study AND (r.node IS NOT NULL OR r.imported IS NOT NULL) AND r.verdict IS NULL
  AND NOT EXISTS (FROM kernels k WHERE k.study = r.study AND k.run_id = r.run_id)
UNION
SELECT k.attention, k.run_id, k.certificate, false,
  coalesce(q.reason, 'it is for ' || c.attention || ' on ' || coalesce(c.device_name, 'no device'))
FROM kernels k JOIN deciding_attempts USING (study, run_id, attempt)
LEFT JOIN certificates c ON c.key = k.certificate
LEFT JOIN quarantine q ON q.study = '.certificates' AND q.run_id = k.certificate
WHERE k.study = $study AND k.outcome = 'completed'
  AND (c.key IS NULL OR c.attention <> k.attention OR coalesce(c.device_name <> k.device, false))
ORDER BY attention, certificate NULLS FIRST, run_id"""


@dataclass(frozen=True)
class Without:
    """Runs of a backend that have no valid certificate.

    Attributes:
        imported: whether another program made them, which certifies nothing.
        certificate: the key that their attempts name; None if they name none.
        reason: why that certificate is not valid; None if it does not exist.
    """

    attention: str | None
    imported: bool
    certificate: str | None
    reason: str | None
    runs: tuple[str, ...]


@dataclass(frozen=True)
class Backends:
    """The certificates of a study's runs, or those that `runner verify` made last.

    Attributes:
        certificates: rows of the table, each with its `tensors` and `kinds` of checks.
        without: the runs that have none.
        queries: (what the SQL gives, SQL) for every number here.
        named: keys that attempts name; runs of attention alone have a certificate for each backend instead.
    """

    certificates: list[Row]
    without: list[Without]
    queries: list[tuple[str, str]]
    named: frozenset[str] = frozenset()

    @cached_property  # asked for in every row of a table
    def detailed(self) -> set[str]:
        """Keys of those with a section of their own: of very many right ones, the first of each backend."""
        rows = self.certificates
        if len(rows) <= MOST_DETAILED:
            return {row["key"] for row in rows}
        first = {(row["attention"], row["verdict"]): row["key"] for row in reversed(rows)}
        apart = {row["key"] for row in rows if row["verdict"] != "right" or row["key"] in self.named}
        return apart | {*first.values()}

    @property
    def wrong(self) -> list[Row]:
        """The certificates that say wrong."""
        return [row for row in self.certificates if row["verdict"] == "wrong"]

    @property
    def devices(self) -> list[str]:
        """The devices that they were made on."""
        return sorted({row["device_name"] or "no device" for row in self.certificates})

    @property
    def shapes(self) -> list[str]:
        """The shapes that they cover."""
        return sorted({row["shape"] or "everything that the backend supports" for row in self.certificates})

    @property
    def scope(self) -> str:
        """What they have in common and so needs no column: `On NVIDIA H200, for B1 ...`."""
        alike = [("On", self.devices), ("for", self.shapes)]
        said = ", ".join(f"{word} {values[0]}" for word, values in alike if len(values) == 1)
        return said[:1].upper() + said[1:]

    @property
    def commits(self) -> list[str]:
        """The commits that `runner verify` made them at, where it recorded one."""
        return sorted({commit(row) for row in self.certificates if row["git_sha"]})

    @property
    def software(self) -> list[str]:
        """Packages with their version or versions."""
        pairs = sorted({pair for row in self.certificates for pair in row["software"].items()})
        versions: dict[str, list[str]] = {}
        for package, version in pairs:
            versions.setdefault(package, []).append(version)
        return [f"{package} {' / '.join(each)}" for package, each in versions.items()]

    @property
    def counts(self) -> list[str]:
        """Number of backends by verdict: `7 right`, `1 wrong`, `2 without a certificate`."""
        found = [
            (verdict, {row["attention"] for row in self.certificates if row["verdict"] == verdict})
            for verdict in ("right", "wrong", "unsupported")
        ]
        found.append(("without a certificate", {group.attention for group in self.without}))
        return [f"{len(names)} {what}" for what, names in found if names]


def of_study(connection: DuckDBPyConnection, study: str, runs: Iterable[Row] = ()) -> Backends:
    """The backends of a study's runs.

    Args:
        runs: whose pages lead to their certificates.
    """
    kinds = itemgetter("attention", "imported", "certificate", "reason")
    groups = grouped(rows(connection, _WITHOUT, study), kinds)
    without = [
        Without(attention, imported, certificate, reason, tuple(row["run_id"] for row in mine))
        for (attention, imported, certificate, reason), mine in groups.items()
    ]
    certificates = _certificates(connection, _of_any_study(), study)
    asked = [(what, literal(sql, study)) for what, sql in queries().items()]
    named = frozenset(run["certificate"] for run in runs if run["certificate"])
    return Backends(certificates, without, asked, named)


def queries() -> dict[str, str]:
    """The queries about the backends of a study, by their results."""
    return {**_of_any_study(), "Runs without a certificate": _WITHOUT}


def _of_any_study() -> dict[str, str]:
    return {what: sql.replace("$certificates", OF_STUDY) for what, sql in _QUERIES.items()}


def of_machine(connection: DuckDBPyConnection) -> Backends:
    """The newest certificate that `runner verify` made of each backend on each device."""
    asked = {what: _without_runs(sql) for what, sql in _QUERIES.items()}
    return Backends(_certificates(connection, asked, ""), [], list(asked.items()))


def _without_runs(sql: str) -> str:
    for part in (RUNS, _AUDITS, _AUDITED):
        sql = sql.replace(part, "")
    return sql.replace("$certificates", _OF_MACHINE)


def _certificates(connection: DuckDBPyConnection, asked: dict[str, str], study: str) -> list[Row]:
    """Each certificate with its `tensors` and `kinds` of checks."""
    found, tensors, kinds = (rows(connection, sql, study) for sql in asked.values())
    return [
        row
        | {
            "tensors": [each for each in tensors if each["certificate"] == row["key"]],
            "kinds": [each for each in kinds if each["certificate"] == row["key"]],
        }
        for row in found
    ]


def short_kernels(names: Iterable[str]) -> list[str]:
    """The names of kernels in short, each once, with how many it stands for: `reduce_kernel x 3`."""
    counts = Counter(map(_short_kernel, names))
    return [
        f"{name} \N{MULTIPLICATION SIGN} {count}" if count > 1 else name for name, count in counts.items()
    ]


def _short_kernel(name: str) -> str:
    """Without return type, template arguments and parameters, which make up nearly all of a name in C++."""
    text = name.removeprefix("void ").replace("(anonymous namespace)::", "")
    base = re.split("[<>(,]", text, maxsplit=1)[0]
    if base.rpartition("::")[2] in _GENERIC and text[len(base) :].startswith("<"):
        return f"{base}<{_short_kernel(text[len(base) + 1 :])}>"
    return base.strip() or name
