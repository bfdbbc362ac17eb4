"""What a report says about the backends: their certificates, what these contain, and a line for each."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from operator import itemgetter
from typing import TYPE_CHECKING, Any, cast

from analysis.charts.certificates import OF_STUDY, RUNS, TENSORS
from analysis.report import correctness
from analysis.report.correctness import CorrectnessRow
from analysis.report.facts import literal, rows
from analysis.report.rows import CertificateRow, Run
from analysis.stats import grouped
from analysis.verdicts.values import commit
from analysis.wording import capital
from model.record.backends import described

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

_OF_MACHINE = "SELECT certificate FROM backends"
MACHINE_TENSORS = TENSORS.replace("$certificates", _OF_MACHINE).replace(RUNS, "")
# The audits of these runs: left out of the page of a machine, as the runs are.
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
_QUERIES = {
    "Certificates": _CERTIFICATES,
    "Correctness tests": correctness.TESTS,
    "Errors by tensor": TENSORS,
    "Checks by kind": _KINDS,
}
MOST_DETAILED = 100  # certificates that each have a section of the page
_PYTORCH = ("at::native::", "Memset", "Memcpy")  # fills, copies and sums, which any backend launches
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
        certificates: rows of the table, each with its `tests`, `tensors` and `kinds` of checks.
        without: the runs that have none.
        queries: (what the SQL gives, SQL) for every number here.
        named: keys that attempts name; runs of attention alone have a certificate for each backend instead.
    """

    certificates: list[CertificateRow]
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
    def tested(self) -> list[CorrectnessRow]:
        """The correctness tests of those with a section of their own."""
        return [test for row in self.certificates if row["key"] in self.detailed for test in row["tests"]]

    @property
    def about_tests(self) -> str:
        """What they are, and where they come from."""
        unjudged = any(test["result"] == "not judged" for test in self.tested)
        return f"{correctness.ABOUT} {correctness.NOT_JUDGED}" if unjudged else correctness.ABOUT

    @property
    def wrong(self) -> list[CertificateRow]:
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
        scope = ", ".join(f"{word} {values[0]}" for word, values in alike if len(values) == 1)
        return capital(scope)

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
        return [f"{package} {' / '.join(several)}" for package, several in versions.items()]

    @property
    def counts(self) -> list[str]:
        """Number of backends by verdict: `7 right`, `1 right in bfloat16 and wrong in float8_e4m3fn`.

        Each is counted once, but for those that have runs without a certificate, too.
        """
        by_backend = grouped(self.certificates, itemgetter("attention"))
        verdicts = Counter(map(_verdict_of, by_backend.values()))
        # Those that are right throughout first, then those that are in part.
        ordered = sorted(verdicts, key=lambda words: (_VERDICTS.index(words.split()[0]), words))
        counts = [f"{verdicts[words]} {words}" for words in ordered]
        without = {group.attention for group in self.without if group.attention}
        return [*counts, *([f"{len(without)} without a certificate"] if without else [])]


_VERDICTS = ("right", "wrong", "unsupported")


def _verdict_of(rows: Sequence[CertificateRow]) -> str:
    """What a backend's certificates say together: `right`, or `right in bfloat16 and wrong in float16`."""
    dtypes: dict[str, set[str]] = {}
    for row in sorted(rows, key=lambda row: _VERDICTS.index(row["verdict"])):
        dtypes.setdefault(row["verdict"], set()).add(row["dtype"] or "")
    if len(dtypes) == 1:
        return next(iter(dtypes))
    every = [dtype for of_verdict in dtypes.values() for dtype in of_verdict]
    if "" in every or len({*every}) < len(every):
        return " and ".join(f"{verdict} by some certificates" for verdict in dtypes)
    return " and ".join(f"{verdict} in {', '.join(sorted(names))}" for verdict, names in dtypes.items())


def of_study(connection: DuckDBPyConnection, study: str, runs: Iterable[Run] = ()) -> Backends:
    """The backends of a study's runs.

    Args:
        runs: whose pages lead to their certificates.
    """
    kinds = itemgetter("attention", "imported", "certificate", "reason")
    groups = grouped(rows(connection, _WITHOUT, study), kinds)
    without = [
        Without(attention, imported, certificate, reason, tuple(row["run_id"] for row in group))
        for (attention, imported, certificate, reason), group in groups.items()
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
    asked = {
        what: sql.replace(RUNS, "")
        .replace(_AUDITS, "")
        .replace(_AUDITED, "")
        .replace("$certificates", _OF_MACHINE)
        for what, sql in _QUERIES.items()
    }
    return Backends(_certificates(connection, asked, ""), [], list(asked.items()))


def _certificates(connection: DuckDBPyConnection, asked: dict[str, str], study: str) -> list[CertificateRow]:
    """Each certificate with its `tests`, `tensors` and `kinds` of checks."""
    certificates, *parts = (rows(connection, sql, study) for sql in asked.values())
    of_key = [grouped(part, itemgetter("certificate")) for part in parts]
    for row in certificates:
        row |= {
            name: of.get(row["key"], [])
            for name, of in zip(("tests", "tensors", "kinds"), of_key, strict=True)
        }
    return cast("list[CertificateRow]", certificates)


@dataclass(frozen=True)
class BackendVerdict:
    """What certificates of a backend say on one device.

    Attributes:
        key: by which the page of certificates lists the first of them.
        certificates: how many say so.
        device: None where all certificates of the backend are of one.
        dtype: None where they are of one, or all say the same.
    """

    verdict: str
    key: str
    certificates: int
    device: str | None
    dtype: str | None = None


@dataclass(frozen=True)
class PassKernels:
    """The kernels of one pass, by short names.

    Attributes:
        own: those that compute attention.
        others: how many of PyTorch's fills, copies and sums came with them.
    """

    own: tuple[str, ...]
    others: int


@dataclass(frozen=True)
class BackendLine:
    """One backend.

    Attributes:
        summary: what it is; None for a backend of another package, which is not read.
        packages: the packages that it computes with, and their versions.
        verdicts: of its certificates; none if its runs have no valid one.
        kernels: by pass, `forward` and `backward`; none where the profiler saw nothing.
        runs: how many are planned.
        completed: how many of them completed; of runs that time attention alone, with a time of this backend.
        without: how many runs have no valid certificate, though they started or were imported.
    """

    name: str
    summary: str | None
    packages: str
    verdicts: tuple[BackendVerdict, ...]
    kernels: dict[str, PassKernels]
    runs: int
    completed: int
    without: int

    @property
    def counted(self) -> str:
        """`10 of 12`, or `12` where all completed."""
        return f"{self.runs:,d}" if self.completed == self.runs else f"{self.completed:,d} of {self.runs:,d}"


def backend_lines(
    runs: Sequence[Run], backends: Backends, kernels: Sequence[Mapping[str, Any]] = ()
) -> list[BackendLine]:
    """The backends in the study's order.

    Args:
        kernels: of runs that time attention alone, their times.
    """
    done = {run["run_id"] for run in runs if run["outcome"] == "completed"}
    common = {package for run in runs for package in run["software"] or {}}
    names = dict.fromkeys(run["attention"] for run in runs if run["attention"])
    if names:
        by_name = grouped(runs, itemgetter("attention"))
        return [_line(name, by_name[name], backends, done, common) for name in names]
    timed = {(row["attention"], row["run_id"]) for row in kernels if row["outcome"] == "completed"}
    called = dict.fromkeys(row["attention"] for row in backends.certificates)  # each run calls several
    return [
        _line(name, runs, backends, {run for run in done if (name, run) in timed}, common) for name in called
    ]


def _line(
    name: str, runs: Sequence[Run], backends: Backends, done: Set[str], common: Set[str]
) -> BackendLine:
    certificates = [row for row in backends.certificates if row["attention"] == name]
    description = described(name)
    imported = all(run["imported"] for run in runs)
    return BackendLine(
        name=name,
        summary=description.summary if description and not imported else None,
        packages=" / ".join(dict.fromkeys(_packages(name, row["software"], common) for row in certificates)),
        verdicts=_verdicts(certificates),
        kernels=_kernels(certificates),
        runs=len(runs),
        completed=sum(run["run_id"] in done for run in runs),
        without=sum(len(group.runs) for group in backends.without if group.attention == name),
    )


def _verdicts(certificates: Sequence[CertificateRow]) -> tuple[BackendVerdict, ...]:
    """What they say, by device and by precision: of one backend, where these differ."""
    apart = all(len({row[column] for row in certificates}) > 1 for column in ("verdict", "dtype"))
    keys: dict[tuple[str, str, str | None], list[str]] = {}
    for row in certificates:
        scope = row["verdict"], row["device_name"] or "no device", row["dtype"] if apart else None
        keys.setdefault(scope, []).append(row["key"])
    several = len({device for _, device, _ in keys}) > 1
    return tuple(
        BackendVerdict(verdict, own[0], len(own), device if several else None, dtype)
        for (verdict, device, dtype), own in keys.items()
    )


def _kernels(certificates: Sequence[CertificateRow]) -> dict[str, PassKernels]:
    """The kernels that they saw in each pass; of a pass with none but PyTorch's fills and copies, these."""
    kernels = {}
    for way in ("forward", "backward", "decoding"):
        names = list(dict.fromkeys(name for row in certificates for name in row["kernels"].get(way, ())))
        own = [name for name in names if not name.removeprefix("void ").startswith(_PYTORCH)]
        if names:
            others = len(names) - len(own) if own else 0
            kernels[way] = PassKernels(tuple(short_kernels(own or names)), others)
    return kernels


def _packages(name: str, software: Mapping[str, str], common: Set[str]) -> str:
    """The packages that a backend computes with, as its certificate records them, or PyTorch.

    A backend of this project declares them. Those of another package's are what its certificate records
    beyond every run of the study.

    Args:
        software: of the certificate.
        common: packages that runs of the study record, under any backend: what was installed beside them.
    """
    description = described(name)
    modules = description.modules if description else ()
    own = [package for package in software if package in modules or package.startswith(f"nvidia-{name}-")]
    if description and not own:
        own = [package for package in description.packages if package in software]
    elif not description and common:
        own = [package for package in software if package not in common and not package.startswith("nvidia-")]
    if modules and not own:
        return f"version of `{modules[0]}` not recorded"
    if not modules and "torch" in software:
        own.insert(0, "torch")
    return ", ".join(f"{package} {software[package]}" for package in own)


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
