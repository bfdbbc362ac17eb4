"""Turns one certificate, or one node's ceilings, into rows. A file that cannot be read is quarantined."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TypeVar

from analysis.store.ingest import Reader, Rows, fitting, utc
from analysis.store.scan import SourceFiles
from analysis.store.tables import Row
from model.attention.verify.certificate import Certificate, case_fields, describe
from model.record.files import Unreadable, dumps, read
from model.record.records import NAME
from model.record.speed import CEILINGS_KEY, NodeRecord

_SAME_NAME = (
    *("key", "verdict", "device_name", "code", "deterministic", "graph_break", "seconds"),
    *("git_sha", "git_dirty"),
)
_SAME_OF_NODE = ("key", "node", "gpu_uuid", "dtype", "seconds")
_CALLED: dict[type, str] = {Certificate: "certificate", NodeRecord: "the record"}
Placed = TypeVar("Placed", Certificate, NodeRecord)
_JSON = ("software", "kernels", "reasons", "not_looked_at")


def read_certificate(root: Path, source: SourceFiles, rows: Rows) -> None:
    """Add the rows of a certificate and its checks. Nothing in the file can make this raise."""
    path = root / source.files[0].path

    def load() -> tuple[Row, list[Row]]:
        certificate = _placed(path, Certificate, NAME)
        case = certificate.case
        row = {
            **{name: getattr(certificate, name) for name in _SAME_NAME},
            **{name: dumps(getattr(certificate, name)) for name in _JSON},
            "attention": certificate.backend,
            "device_kind": certificate.device,
            "dtype": case and case.dtype,
            "shape": case and describe(case),
            "run_case": case and dumps(case_fields(case)),
            "checks": len(certificate.checks),
            "failed": sum(not check.passed for check in certificate.checks),
            "created_at": utc(certificate.created_at),
        }
        checks = [
            {
                **check.model_dump(exclude={"case"}),
                "certificate": certificate.key,
                "attention": certificate.backend,
                "place": place,
                "shape": check.case,
            }
            for place, check in enumerate(certificate.checks, start=1)
        ]
        return fitting(row), [fitting(check) for check in checks]

    if loaded := Reader(root, source.key, rows).read(str(path), load):
        row, checks = loaded
        rows.certificates.append(row)
        rows.verifications += checks


def _placed(path: Path, kind: type[Placed], keys: re.Pattern[str]) -> Placed:
    """The record, if its file is named after its key: a copy would count twice."""
    record = read(path, kind)
    if record.key != path.stem or not keys.fullmatch(record.key):
        raise Unreadable(f"it is {_CALLED[kind]} {record.key}, which belongs in another file")
    return record


def read_node(root: Path, source: SourceFiles, rows: Rows) -> None:
    """Add the row of a record. Nothing in the file can make this raise."""
    path = root / source.files[0].path

    def load() -> Row:
        record = _placed(path, NodeRecord, CEILINGS_KEY)
        measured, clocks = record.measured, record.measured.clocks
        fastest = max((product.flops for product in measured.products), default=0.0)
        row = {
            "study": source.key[0],
            **{name: getattr(record, name) for name in _SAME_OF_NODE},
            "device": record.device_name,
            "gpu": record.device_name if record.gpu_uuid else None,
            "gpus": int(record.gpu_uuid is not None),
            "driver": record.software.get("driver"),
            "software": dumps(record.software),
            "graphics_clock_mhz": clocks and clocks.graphics_mhz,
            "memory_clock_mhz": clocks and clocks.memory_mhz,
            "power_limit_watts": clocks and clocks.power_limit_watts,
            "matmul_tflops": fastest / 1e12 or None,
            "bandwidth_gigabytes_per_second": measured.bandwidth / 1e9,
            "launch_microseconds": measured.launch.seconds * 1e6,
            "unsure": measured.unsure,
            "measured": dumps(measured.model_dump(mode="json")),
            "measured_at": utc(record.measured_at),
        }
        return fitting(row)

    if row := Reader(root, source.key, rows).read(str(path), load):
        rows.nodes.append(row)
