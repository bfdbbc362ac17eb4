"""What is derived when runs are collected is what queries over all step records would compute."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from analysis.query.ask import ask
from analysis.store.collect import collect, read_folders
from analysis.store.steps import MEASURES
from model.record import files
from tests.analysis.fabricate import Folder, plan

# The same by windows over every step record, in one query.
STEPS = """\
WITH spans AS (
    SELECT study, run_id, attempt, min(step - steps) AS start
    FROM step_records GROUP BY study, run_id, attempt
)
SELECT s.study, s.run_id, s.attempt, s.step, s.time, s.loss, s.step_seconds, s.tokens, s.steps,
    s.training_tokens, s.memory_bytes, s.data_wait_seconds, s.energy_joules, s.sm_mhz, s.throttle_reasons,
    s.slowest_rank, s.slowest_rank_seconds, s.other_ranks_seconds,
    coalesce(s.power_joules, if(s.step_seconds * s.steps >= 1, s.energy_joules, NULL)) AS joules,
    coalesce(s.power_seconds, s.step_seconds * s.steps) AS seconds, joules / (seconds + 0.1) AS power_watts,
    s.step - coalesce(s.power_steps, s.steps) AS since,
    since >= greatest(1, least(10, r.planned_steps // 10)) AND since IS DISTINCT FROM a.resumed_step AS warm,
    100.0 * a.flop_per_token * (s.tokens / s.steps / nullif(s.step_seconds, 0))
        / (greatest(a.gpus, 1) * a.peak_flops) AS mfu,
    a.flop_per_token * (s.tokens / s.steps / nullif(s.step_seconds, 0)) / greatest(a.gpus, 1) / 1e12 AS tflops,
    s.step - s.steps >= greatest(1, least(10, r.planned_steps // 10))
        AND s.step - s.steps IS DISTINCT FROM a.resumed_step
        AND a.device IS NOT DISTINCT FROM da.device AND a.gpus IS NOT DISTINCT FROM da.gpus AS counted
FROM step_records s
JOIN run_records r ON r.study = s.study AND r.run_id = s.run_id
LEFT JOIN attempts a ON a.study = s.study AND a.run_id = s.run_id AND a.attempt = s.attempt
LEFT JOIN deciding_attempts d ON d.study = s.study AND d.run_id = s.run_id
LEFT JOIN attempts da ON da.study = d.study AND da.run_id = d.run_id AND da.attempt = d.attempt
WHERE NOT EXISTS (
    FROM spans l WHERE l.study = s.study AND l.run_id = s.run_id AND l.attempt > s.attempt
    AND s.step > l.start)
QUALIFY row_number() OVER (PARTITION BY s.study, s.run_id, s.step ORDER BY s.attempt DESC, s.time DESC) = 1"""
RUNS = f"""\
WITH steps AS ({STEPS})
SELECT s.study, s.run_id, max(s.step) AS last_step, last(s.loss ORDER BY s.step) AS final_loss,
    100.0 * sum(s.training_tokens) / sum(s.tokens) AS training_tokens_percentage,
    count(*) FILTER (s.counted) AS counted_records,
    sqrt(greatest(quantile_disc(s.step_seconds, 0.5) FILTER (s.counted), 0)
        * -quantile_disc(-s.step_seconds, 0.5) FILTER (s.counted)) AS step_seconds,
    quantile_cont(s.step_seconds, 0.25) FILTER (s.counted) AS step_seconds_25,
    quantile_cont(s.step_seconds, 0.75) FILTER (s.counted) AS step_seconds_75,
    max(s.memory_bytes) FILTER (s.attempt = d.attempt) AS memory_bytes,
    sum(s.tokens) FILTER (s.counted) / sum(s.steps) FILTER (s.counted AND s.tokens IS NOT NULL) AS tokens_per_step,
    round(sum(s.step_seconds * s.steps), 6) AS training_seconds,
    CASE WHEN bool_and(s.energy_joules IS NOT NULL) THEN round(sum(s.energy_joules), 3) END AS energy_joules,
    round(sum(s.joules) FILTER (s.counted AND s.warm)
        / (sum(s.seconds) FILTER (s.counted AND s.warm AND s.joules IS NOT NULL)
            + 0.1 * count(DISTINCT if(s.counted AND s.warm AND s.joules IS NOT NULL, s.attempt, NULL))), 3) AS power_watts,
    round(sum(if(s.counted AND s.warm AND s.tokens IS NOT NULL, s.joules, NULL))
        / sum(if(s.counted AND s.warm AND s.joules IS NOT NULL, (s.step - s.since) * s.tokens / s.steps, NULL)), 9)
        AS joules_per_token,
    round(100 * sum(s.data_wait_seconds) FILTER (s.counted)
        / sum(s.step_seconds * s.steps) FILTER (s.counted AND s.data_wait_seconds IS NOT NULL), 4) AS data_wait_percentage,
    min(s.sm_mhz) FILTER (s.counted) AS sm_mhz_low, max(s.sm_mhz) FILTER (s.counted) AS sm_mhz_high,
    array_to_string(list_sort(list(DISTINCT if(s.throttle_reasons = '', 'none', s.throttle_reasons))
        FILTER (s.counted AND s.throttle_reasons IS NOT NULL)), '; ') AS throttle_reasons,
    (min(s.sm_mhz) FILTER (s.counted) < 0.85 * max(s.sm_mhz) FILTER (s.counted))
        OR count(DISTINCT s.throttle_reasons) FILTER (s.counted) > 1 AS clocks_changed,
    mode(s.slowest_rank ORDER BY s.slowest_rank) FILTER (s.counted AND s.attempt = d.attempt) AS slowest_rank,
    nullif(count(s.slowest_rank) FILTER (s.counted AND s.attempt = d.attempt), 0) AS ranked_records
FROM steps s JOIN deciding_attempts d ON d.study = s.study AND d.run_id = s.run_id GROUP BY s.study, s.run_id ORDER BY ALL"""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two studies of runs with several attempts that resume, overlap, begin anew, repeat lines and change devices."""
    root = tmp_path_factory.mktemp("root")
    chance = random.Random(0)
    for number in range(60):
        _run(root, chance, f"r{number:02}", f"s{number % 2}")
    collect(root)
    return root


def _run(root: Path, chance: random.Random, run_id: str, study: str) -> None:
    folder = Folder(root, plan(run_id, study, seed=1, steps=chance.choice([5, 40, 200])))
    at = 0
    for attempt in range(1, chance.choice([1, 1, 2, 3, 4]) + 1):
        at = chance.choice([0, at, max(0, at - 3), at // 2])
        device = chance.choice(["a", "a", "a", "b"])
        folder.start(attempt=attempt, device=device, gpus=chance.choice([1, 1, 4]), resumed_step=at or None)
        for _ in range(chance.randrange(12)):
            _record(folder, chance, attempt, step=at + (every := chance.choice([1, 5])), every=every)
            at += every if chance.random() > 0.1 else 0  # the same step once more
        if chance.random() < 0.7:
            folder.end(chance.choice(["completed", "preempted"]), attempt=attempt)


def _record(folder: Folder, chance: random.Random, attempt: int, step: int, every: int) -> None:
    loss = chance.choice([None, chance.random()])
    memory = chance.randrange(1000)
    seconds = chance.random()
    fields = {
        "data_wait_seconds": chance.choice([0.0, seconds * every * chance.random()]),
        "energy_joules": chance.choice([100.0, *[700 * seconds * every] * 20, None]),
        "sm_mhz": chance.choice([*[1980.0, 1900.0] * 5, 1600.0]),
        "throttle_reasons": chance.choice(["", "sw_power_cap"]) if chance.random() < 0.1 else "",
        "slowest_rank": chance.choice([0, 1, 1, 3]),
        "slowest_rank_seconds": seconds * (0.5 + chance.random() / 2),
        "other_ranks_seconds": seconds / 2,
    }
    if folder.run.run_id > "r4" and chance.random() < 0.5:
        steps = every * chance.choice([1, 2, 3])
        fields |= {
            "power_joules": 650 * seconds * steps,
            "power_seconds": seconds * steps,
            "power_steps": steps,
        }
    measured = fields if folder.run.run_id > "r2" else {}  # as in older records
    folder.step(step, seconds, every, attempt, loss=loss, memory_bytes=memory, **measured)


def rows(root: Path, sql: str) -> list[dict[str, Any]]:
    return ask(root, sql).records()


def test_each_step_is_settled_as_a_query_over_all_attempts_would_settle_it(root: Path) -> None:
    expected = rows(root, f"SELECT * EXCLUDE (joules, seconds, since, warm) FROM ({STEPS}) ORDER BY ALL")
    names = ", ".join(expected[0])
    assert len(expected) > 300
    assert rows(root, "SELECT count(*) AS n FROM step_records WHERE superseded")[0]["n"] > 100
    assert rows(root, f"SELECT {names} FROM steps ORDER BY ALL") == expected


def test_each_run_is_measured_as_a_query_over_all_its_steps_would_measure_it(root: Path) -> None:
    expected = rows(root, RUNS)
    names = ", ".join(expected[0])
    assert sum(row["step_seconds"] is not None for row in expected) > 10
    assert {row["clocks_changed"] for row in expected} == {True, False, None}
    assert {row["energy_joules"] is None for row in expected if row["power_watts"]} == {True, False}
    assert rows(root, f"SELECT {names} FROM run_measures ORDER BY ALL") == expected


def test_a_run_that_goes_on_is_settled_anew(root: Path) -> None:
    folder = Folder(root, plan("late", "s0"))
    for attempt in (1, 2):
        folder.start(attempt=attempt)
        folder.step(20, attempt=attempt)
        collect(root)
        settled = rows(root, "SELECT attempt FROM steps WHERE run_id = 'late'")
        assert settled == [{"attempt": attempt}]


CURVES = """\
SELECT study, run_id, most, width, min(first_step) AS first_step, max(step) AS step, sum(records)::BIGINT AS records,
    sum(losses)::BIGINT AS losses, round(sum(loss * losses) / sum(losses), 9) AS loss,
    sum(tokens)::BIGINT AS tokens, round(sum(seconds), 9) AS seconds
FROM curves GROUP BY study, run_id, most, width, (step - 1) // width ORDER BY ALL"""
POINTS = """\
SELECT study, run_id, most, width, min(step) AS first_step, max(step) AS step, count(*) AS records,
    count(loss) AS losses, round(avg(loss), 9) AS loss,
    sum(tokens)::BIGINT AS tokens, round(sum(step_seconds * steps), 9) AS seconds
FROM steps JOIN (SELECT DISTINCT study, run_id, most, width FROM curves) USING (study, run_id)
GROUP BY study, run_id, most, width, (step - 1) // width ORDER BY ALL"""


def test_each_curve_is_the_run_s_step_records_in_points_that_nest(root: Path) -> None:
    for run_id, records, every in (("few", 256, 10), ("many", 300, 1), ("more", 700, 1), ("sparse", 300, 3)):
        folder = Folder(root, plan(run_id, "s0", steps=records * every))
        folder.start()
        for step in range(every, records * every + 1, every):
            folder.step(step, steps=every, loss=None if step == 33 else 10 / step)
        folder.end()
    collect(root)
    points = rows(root, POINTS)
    assert rows(root, CURVES) == points
    assert len(points) == rows(root, "SELECT count(*) AS n FROM curves")[0]["n"]
    runs = (
        "SELECT width, count(*) AS n FROM curves WHERE run_id = '{}' GROUP BY most, width ORDER BY most DESC"
    )
    widths = {run_id: rows(root, runs.format(run_id)) for run_id in ("few", "many", "more", "sparse", "r00")}
    assert widths["few"] == [{"width": 1, "n": 256}, {"width": 128, "n": 20}]
    assert widths["many"] == [{"width": 2, "n": 150}, {"width": 16, "n": 19}]
    assert widths["more"] == [{"width": 4, "n": 175}, {"width": 32, "n": 22}]
    assert widths["sparse"] == [{"width": 8, "n": 113}, {"width": 32, "n": 29}]
    assert {row["width"] for row in widths["r00"]} == {1}


BEGUN = """\
WITH firsts AS (
    SELECT study, run_id, attempt, arg_min(time, step) AS time, arg_min(step_seconds, step) AS seconds,
        arg_min(steps, step) AS steps, arg_min(superseded, step) AS superseded
    FROM step_records GROUP BY ALL
)
SELECT f.study, f.run_id,
    round(sum(greatest(0, date_diff('microsecond', a.started_at, f.time) / 1e6 - f.seconds * f.steps)), 6) AS startup_seconds,
    round(sum(greatest(0, (f.seconds - m.step_seconds) * f.steps)) FILTER (NOT f.superseded AND f.seconds + m.step_seconds IS NOT NULL), 6) AS first_step_seconds
FROM firsts f JOIN run_measures m USING (study, run_id) JOIN attempts a USING (study, run_id, attempt)
GROUP BY ALL ORDER BY ALL"""


def test_start_and_first_step_are_those_of_a_query_over_every_attempt(root: Path) -> None:
    expected = rows(root, BEGUN)
    assert sum((row["first_step_seconds"] or 0) > 0 for row in expected) > 10
    assert (
        rows(
            root,
            "SELECT study, run_id, round(startup_seconds, 6) AS startup_seconds, "
            "round(first_step_seconds, 6) AS first_step_seconds FROM run_measures ORDER BY ALL",
        )
        == expected
    )


def test_runs_are_comparable_if_they_differ_by_attention_and_the_data_s_path_alone(tmp_path: Path) -> None:
    moved = plan("moved", attention="flash")
    moved = moved.model_copy(
        update={
            "config": moved.config.model_copy(
                update={"data": moved.config.data.model_copy(update={"path": "elsewhere.parquet"})}
            )
        }
    )
    others = (plan("seed", seed=1), plan("text", data_fingerprint="e" * 16), plan("long", steps=200))
    for run in (plan("first"), moved, *others):
        folder = Folder(tmp_path, run)
        folder.start()
        folder.step(5)
    collect(tmp_path)
    groups = rows(
        tmp_path, "SELECT list(run_id ORDER BY run_id) AS runs FROM comparable GROUP BY other_settings"
    )
    assert sorted(row["runs"] for row in groups) == [["first", "moved"], ["long"], ["seed"], ["text"]]


def _derived(root: Path) -> dict[str, list[dict[str, Any]]]:
    return {table: rows(root, f"FROM {table} ORDER BY ALL") for table in MEASURES}


def _anew(root: Path) -> dict[str, list[Any]]:
    with read_folders(root, "s") as connection:
        return {table: connection.execute(f"FROM {table} ORDER BY ALL").fetchall() for table in MEASURES}


def test_what_is_derived_follows_every_change_of_the_folders(tmp_path: Path) -> None:
    """A run that grows, one that is planned anew, one that comes and one whose files go."""
    first, second = (Folder(tmp_path, plan(name, "s")) for name in ("first", "second"))

    def matches() -> bool:
        collect(tmp_path, "s")
        derived = {
            table: [tuple(row.values()) for row in table_rows]
            for table, table_rows in _derived(tmp_path).items()
        }
        return derived == _anew(tmp_path)

    for folder in (first, second):
        folder.start()
        folder.step(5, seconds=2)
    assert matches()
    for step in range(10, 101, 5):
        first.step(step)
    assert matches()
    first.start(attempt=2, resumed_step=50)
    first.step(55, attempt=2)
    first.end(attempt=2)
    assert matches()
    files.write(second.path / "run.json", second.run.model_copy(update={"data_fingerprint": "e" * 16}))
    assert matches()
    third = Folder(tmp_path, plan("third", "s", attention="flash"))
    third.start()
    third.step(5)
    assert matches()
    before = _derived(tmp_path)
    (first.path / "attempt-1" / "steps.jsonl").unlink()
    (first.path / "run.json").unlink()
    collect(tmp_path, "s")
    assert _derived(tmp_path) == before, "what only the database has is kept, with what derives from it"
