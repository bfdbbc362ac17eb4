"""Whether records contradict each other: steps their attempt, checks their verdict, a key its content."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from analysis.audit.finding import AuditFinding
from analysis.query.ask import answer
from model.attention.verify.certificate import key
from model.measure.flops import of_run
from model.record.case import Case
from model.record.config import CallConfig, RunConfig
from model.record.kernels import order_statistic_interval

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

_MOST = 20  # contradictions of one kind
_CHECKS = Path(__file__).with_name("records.sql")
_PLANS = """\
SELECT a.study || '/' || a.run_id || ' attempt ' || a.attempt AS place, r.config, a.flop_per_token
FROM attempts a JOIN run_records r USING (study, run_id) WHERE a.flop_per_token IS NOT NULL ORDER BY ALL"""
_SHAPE = ("dtype", "causal", "batch", "sequence_length", "heads", "kv_heads", "head_dim")
_TILE = ("tile_queries", "tile_keys")
_CALLS = f"""\
SELECT DISTINCT k.study || '/' || k.run_id || ' attempt ' || k.attempt AS place, r.config, k.calls,
    {", ".join(f"k.{name}" for name in _SHAPE)}, coalesce(k.dropout, 0) AS dropout,
    {", ".join(f"k.{name}" for name in _TILE)}
FROM kernels k JOIN run_records r USING (study, run_id) ORDER BY ALL"""
_TIMES = """\
SELECT study || '/' || run_id || ' attempt ' || attempt || ', ' || concat_ws(' ', attention, direction, mode),
    seconds, calls, milliseconds, milliseconds_low, milliseconds_high
FROM kernels WHERE seconds IS NOT NULL ORDER BY ALL"""
_IDENTITIES = "SELECT key, attention, code, run_case, device_name, software FROM certificates ORDER BY key"


def contradictions(connection: DuckDBPyConnection) -> Iterator[AuditFinding]:
    """What is inconsistent in the records of an open database, whatever the pages say."""
    for text in _CHECKS.read_text(encoding="utf-8").split("\n\n")[1:]:
        header, _, sql = text.partition("\n")
        table, sql = header.removeprefix("-- "), sql.rstrip().removesuffix(";")
        for place, stated, others in answer(connection, f"FROM ({sql}) ORDER BY 1 LIMIT {_MOST}").rows:
            yield AuditFinding(_file(table), str(place), str(stated), str(others))
    yield from _against_plans(connection)

    # Medians and intervals of attention alone that are not those of its calls.
    for place, text, *stated in answer(connection, _TIMES).rows:
        seconds = json.loads(text)
        middle_and_ends = (median(seconds), *(order_statistic_interval(seconds) or ()))
        expected = [len(seconds), *(1e3 * value for value in middle_and_ends)]
        if [value for value in stated if value is not None] != expected:
            yield AuditFinding(_file("kernels"), place, _timed(stated), _timed(expected))

    # Certificates whose key is not that of what they say that they are for.
    for name, attention, code, text, device, software in answer(connection, _IDENTITIES).rows:
        try:
            values: dict[str, Any] | None = json.loads(text) if text else None
            case = Case(**values) if values else None
            identity = key(attention, code, case, device, json.loads(software))
        except (TypeError, ValueError):
            identity = "no key: its case or software cannot be read"
        if name != identity:
            yield AuditFinding(_file("certificates"), attention, f"key {name}", identity)


def _against_plans(connection: DuckDBPyConnection) -> Iterator[AuditFinding]:
    """What does not follow from the configuration of its run."""
    # FLOP per token, from which MFU follows.
    for place, config, stated in answer(connection, _PLANS).rows:
        try:
            plan = RunConfig.model_validate_json(config)
        except ValidationError:  # of another version, or imported
            continue
        expected = of_run(plan)
        if stated != expected:
            yield AuditFinding(_file("attempts"), place, f"{stated:,} FLOP per token", f"{expected or 0:,}")

    # Attention that was timed at another shape, or in another number of rounds.
    for place, config, calls, *shape in answer(connection, _CALLS).rows:
        try:
            plan = RunConfig.model_validate_json(config)
        except ValidationError:  # of another version
            continue
        if not isinstance(plan.section, CallConfig):
            continue
        case = plan.attention_case
        planned = [*(getattr(case, name) for name in _SHAPE), case.dropout, *(case.tile or (None, None))]
        if shape != planned or calls not in (0, plan.call.steps):
            yield AuditFinding(
                _file("kernels"), place, _called(shape, calls), _called(planned, plan.call.steps)
            )


def _file(table: str) -> str:
    return f"data/records/{table}.parquet"


def _called(shape: Sequence[Any], calls: int) -> str:
    pairs = zip((*_SHAPE, "dropout", *_TILE), shape, strict=True)
    named = [(name, x) for name, x in pairs if name in _SHAPE or x]
    return ", ".join(f"{name} {x}" for name, x in named) + f", {calls} calls"


def _timed(values: Sequence[Any]) -> str:
    calls, *milliseconds = values
    return f"{calls} calls, {' ms, '.join(str(value) for value in milliseconds)} ms"
