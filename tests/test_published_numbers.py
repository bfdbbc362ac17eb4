"""Each measured number of README.md and docs/ is computed again from the report that it names.

This is the check of somebody else: plain SQL over the raw records that a report carries, and no code of this project.
Only verdicts are read from what the report concluded, its `data/findings/*.csv`.
"""

import re
import string
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import duckdb
import pytest

from tests.conftest import REPOSITORY

PUBLISHED = REPOSITORY / "reports/published"
WORDS = [
    "zero",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
]

# A run's median after warm-up, of an even number the geometric mean of the two in the middle, and what follows from it.
RUNS = """
WITH settings AS (
    SELECT *, coalesce((config ->> '$.inference.warmup_steps')::INT, greatest(1, least(10, planned_steps // 10)))
        AS warmup FROM run_records
), steps AS (
    SELECT study, run_id, exp(median(ln(step_seconds)) FILTER (step - steps >= warmup)) AS seconds,
        sum(tokens) FILTER (step - steps >= warmup) / sum(steps) FILTER (step - steps >= warmup) AS tokens,
        epoch(max(time) - min(time) FILTER (step - steps >= warmup)) / (max(step) - min(step) FILTER (step - steps >= warmup))
            AS clocked_seconds,
        100 * sum(training_tokens) / sum(tokens) AS trained, sum(step_seconds * steps) AS total_seconds
    FROM step_records JOIN settings USING (study, run_id) GROUP BY ALL
)
SELECT *, tokens / seconds AS rate, rate / greatest(gpus, 1) AS rate_each,
    flop_per_token * rate_each / 1e12 AS tflops, 1e14 * tflops / peak_flops AS mfu, peak_memory_bytes / 2^30 AS gib
FROM run_records JOIN attempts USING (study, run_id) LEFT JOIN steps USING (study, run_id)"""

# A call's time in each round.
ROUNDS = """
SELECT *, unnest(from_json(seconds, '["DOUBLE"]')) AS second, unnest(range(calls)) AS round
FROM kernels WHERE outcome = 'completed'"""

# Attention alone in CUDA graphs, each call under a name: call('math both B16 T2048 H8 D64 causal float16').
CALLS = """
SELECT *, milliseconds AS ms, memory_bytes / 1e6 AS mb, concat_ws(' ', attention, direction, 'B' || batch,
    'T' || sequence_length, 'H' || heads, 'D' || head_dim, if(causal, 'causal', 'full'), dtype) AS name
FROM kernels WHERE mode = 'graph' AND outcome = 'completed'"""

# A llama under FlashAttention, and the same under plain attention that fitted.
PAIRS = """
SELECT 100 * (1 - f.seconds / m.seconds) AS time, 100 * (1 - f.gib / m.gib) AS memory, f.sequence_length AS tokens
FROM runs f JOIN runs m ON f.attention = 'flash' AND m.attention = 'math' AND m.outcome = 'completed'
    AND json_merge_patch(f.factors, '{"attention": null}') = json_merge_patch(m.factors, '{"attention": null}')"""

# By how many nats the fastest run's loss is above each other's, over the last fifth of the steps.
LOSS_OF_THE_FASTEST = """
WITH losses AS (SELECT run_id, avg(loss) AS loss FROM step_records WHERE step > 800 GROUP BY run_id),
ordered AS (SELECT losses.loss, rate FROM losses JOIN runs USING (run_id) ORDER BY rate DESC)
SELECT fastest.loss - other.loss FROM (FROM ordered LIMIT 1) fastest, (FROM ordered OFFSET 1) other"""

# By how many percent training under `custom` is faster than under `flash3`, with its interval over pairs (t, 4 degrees
# of freedom).
GAINS = """
WITH pairs AS (
    SELECT ln(custom.rate / flash3.rate) AS gain FROM runs custom JOIN runs flash3 USING (seed, repeat)
    WHERE custom.attention = 'custom' AND flash3.attention = 'flash3'),
means AS (SELECT avg(gain) AS mean, 2.776 * stddev(gain) / sqrt(count(*)) AS half, count(*) AS n FROM pairs)
SELECT 100 * (exp(mean) - 1) AS gain, 100 * (exp(mean - half) - 1) AS low, 100 * (exp(mean + half) - 1) AS high, n
FROM means"""


class Claim(NamedTuple):
    """Rows of a query, as a page's text has them: `{}` stands for a value, ` ... ` for text that is left out."""

    page: str
    report: str
    text: str
    query: str


class Exempt(NamedTuple):
    """A pattern of text whose numbers were not measured in a published report, and why they stand there."""

    page: str
    text: str
    reason: str


def calls(report: str, dtype: str, text: str, *names: str) -> Claim:
    """Of docs/seeds.md, with the rows of calls of attention as values."""
    return Claim(
        "docs/seeds.md", report, text, "SELECT " + ", ".join(f"call('{name} {dtype}')" for name in names)
    )


# A decoded token under each backend: the median over its runs of each run's median over positions.
TOKENS = """
WITH medians AS (
    SELECT attention, run_id, 1000 * median(seconds) AS milliseconds
    FROM decoding JOIN run_records USING (run_id) GROUP BY ALL)
SELECT attention, median(milliseconds) AS milliseconds FROM medians GROUP BY attention"""

# Joules a token of each run, after its warm-up, of a study of training.
SPENT = """
SELECT r.*, energy.joules, count(*) OVER (PARTITION BY r.factors) AS n
FROM runs r JOIN (
    SELECT run_id, sum(power_joules) / sum(power_steps * s.tokens / s.steps) AS joules
    FROM step_records s JOIN runs USING (run_id)
    WHERE power_joules > 0 AND step - power_steps >= greatest(1, least(10, planned_steps // 10)) GROUP BY run_id
) energy USING (run_id)"""

# The share of one GPU's rate with as many samples that each of several keeps, in percent, at samples of 4,096 tokens.
KEPT = f"""
SELECT r.*, r.batch_size // r.gpus AS each, 100 * r.rate_each / one.rate_each AS kept,
    r.factors LIKE '%reshard":false%' AS once, (r.config ->> '$.train.accumulate')::INT AS parts,
    if(r.factors LIKE '%replicate":1%', 'FSDP2', 'DDP') AS way
FROM ({SPENT}) r JOIN runs one ON one.gpus = 1 AND one.sequence_length = 4096 AND one.batch_size = r.batch_size // r.gpus
WHERE r.sequence_length = 4096"""

CLAIMS = [
    Claim(
        "README.md",
        "backends-h200",
        "| {:Word} backends | 8B llama, {} runs each: {:word} slower than cudnn, {:word} undecided |",
        """SELECT count(DISTINCT attention), count(*) // count(DISTINCT attention),
            (SELECT count(*) FROM ratios WHERE verdict = 'different' AND ratio < 1),
            (SELECT count(*) FROM ratios WHERE verdict = 'inconclusive')
        FROM run_records""",
    ),
    Claim(
        "README.md",
        "backends-full-h200",
        "| The full study | {:,} steps under {:word} backends, {:word} run each so far: {:,.0f} to {:,.0f} tokens/s |",
        """SELECT max(steps), count(DISTINCT attention), count(*) // count(DISTINCT attention), min(rate), max(rate)
        FROM runs WHERE outcome = 'completed'""",
    ),
    Claim(
        "README.md",
        "lsai-gh200",
        "the fastest run's loss is {:.2f} nats above the others'",
        LOSS_OF_THE_FASTEST,
    ),
    Claim(
        "README.md",
        "inference-h200",
        "reading a prompt under {:word} backends, {:word} runs each: {:word} are faster than PyTorch's choice by over 1 %, "
        "{:word} slower, ours ({:+.1f} %) undecided, each tested alone; a token under {:word}: ours takes the least "
        "time, {:.2f} ms (PyTorch's choice: {:.2f}), told apart from all others",
        f"""WITH backends AS (
            SELECT attention, exp(avg(ln(rate))) AS rate, count(*) FILTER (outcome = 'completed') AS n
            FROM runs GROUP BY ALL),
        tokens AS (FROM ({TOKENS}))
        SELECT count(*), min(n),
            (SELECT count(*) FROM ratios WHERE verdict = 'different' AND ratio > 1),
            (SELECT count(*) FROM ratios WHERE verdict = 'different' AND ratio < 1),
            (SELECT 100 * (ratio - 1) FROM ratios WHERE verdict = 'inconclusive'),
            (SELECT count(DISTINCT attention) FROM decoding JOIN run_records USING (run_id)),
            (SELECT min(milliseconds) FROM tokens),
            (SELECT milliseconds FROM tokens WHERE attention = 'auto')
        FROM backends""",
    ),
    Claim(
        "README.md",
        "speed-h200",
        "{:word} runs each: one-pass AdamW gains {:.1f} to {:.1f} %, compiled blocks {:.1f} to {:.1f} %, "
        "float8 by tensor {:.0f} %; recomputing costs {:.0f} %",
        """WITH cells AS (
            SELECT seed, rate, (factors ->> '$."train.compile"') = 'true' AS compiled,
                (factors ->> '$."train.loss"') = 'linear_cross_entropy' AS joined,
                (factors ->> '$."train.optimizer"') = 'adamw_one_pass' AS one_pass,
                (factors ->> '$."train.float8"') AS float8,
                (factors ->> '$."train.checkpoint_activations"') = 'true' AS again
            FROM runs),
        plain AS (FROM cells WHERE float8 = 'none' AND NOT again),
        one AS (SELECT 100 * (exp(avg(ln(a.rate / b.rate))) - 1) AS gain
            FROM plain a JOIN plain b USING (seed, compiled, joined) WHERE a.one_pass AND NOT b.one_pass GROUP BY compiled, joined),
        blocks AS (SELECT 100 * (exp(avg(ln(a.rate / b.rate))) - 1) AS gain
            FROM plain a JOIN plain b USING (seed, one_pass, joined) WHERE a.compiled AND NOT b.compiled GROUP BY one_pass, joined),
        best AS (FROM plain WHERE compiled AND joined AND one_pass)
        SELECT (SELECT count(*) FROM best), (SELECT min(gain) FROM one), (SELECT max(gain) FROM one),
            (SELECT min(gain) FROM blocks), (SELECT max(gain) FROM blocks),
            100 * (exp(avg(ln(c.rate / best.rate)) FILTER (c.float8 = 'tensorwise')) - 1),
            100 * (1 - exp(avg(ln(c.rate / best.rate)) FILTER (c.again)))
        FROM best JOIN cells c USING (seed)""",
    ),
    Claim("README.md", "kernels-h200", "{} cases", "SELECT count(*) FROM run_records"),
    Claim(
        "README.md",
        "kernels-goals-h200",
        "the {} by which we judge our kernel",
        "SELECT count(*) FROM run_records",
    ),
    Claim(
        "README.md",
        "scaling-h200",
        "| {:Word} GPUs | one run each so far: with as many samples a GPU, an 8B llama under FSDP2 keeps {:.1f} to "
        "{:.1f} % of the rate of one; a sample of {:,} tokens is trained on at {:.1f} % MFU |",
        """WITH four AS (SELECT 100 * r.rate_each / one.rate_each AS kept
            FROM runs r JOIN runs one ON one.gpus = 1 AND one.batch_size = r.batch_size / 4
            WHERE r.gpus = 4 AND r.factors LIKE '%shard":4%')
        SELECT max(gpus), (SELECT min(kept) FROM four), (SELECT max(kept) FROM four), max(sequence_length),
            max_by(mfu, sequence_length) FROM runs""",
    ),
    Claim(
        "README.md",
        "seed-003-grid-h100",
        "{} pairs of transformers, one run each: {:.0f} to {:.0f} % of the time in {:word}, {:word} undecided; "
        "{:.0f} to {:.0f} % of the memory",
        f"""WITH decided AS (SELECT 100 * (1 - 1 / ratio) AS time FROM ratios WHERE verdict = 'observed'),
        pairs AS ({PAIRS})
        SELECT count(*), (SELECT min(time) FROM decided), (SELECT max(time) FROM decided),
            (SELECT count(*) FROM decided), count(*) - (SELECT count(*) FROM decided), min(memory), max(memory) FROM pairs""",
    ),
    Claim(
        "README.md",
        "fp8-h100",
        "ours is {:.2f} times as fast as in bfloat16; the others fail",
        """SELECT max(milliseconds) / min(milliseconds) FROM kernels
        WHERE attention = 'custom' AND direction = 'forward' AND mode = 'graph'""",
    ),
    Claim(
        "README.md",
        "prefill-fp8-h200",
        "a prompt of {:,} tokens is read {:.1f} % faster",
        """SELECT max(sequence_length), 100 * (exp(avg(ln(rate)) FILTER (factors LIKE '%float8%')
            - avg(ln(rate)) FILTER (factors NOT LIKE '%float8%')) - 1) FROM runs""",
    ),
    Claim(
        "docs/scaling.md",
        "scaling-h200",
        "This is for {:word} H200s of one machine; on {:word},",
        "SELECT max(gpus), 2 * max(gpus) FROM runs",
    ),
    Claim(
        "docs/seeds.md",
        "backends-full-h200",
        "one run each on one of {:word} H200s",
        "SELECT count(DISTINCT gpu_uuid) FROM attempts",
    ),
    Claim(
        "docs/seeds.md",
        "backends-full-h200",
        "| {} | {:,.0f} | {:,.0f} | {:.2f} | {:.1f} | {:.1f} | {:.1f} |",
        """SELECT name, theirs.rate, ours.rate, theirs.mfu, ours.mfu, theirs.total_seconds, ours.total_seconds
        FROM (VALUES ('baseline', 'auto', 'baseline, `auto`'), ('flash-attn-efficient', 'efficient', '`efficient`'),
            ('flash-attn-cudnn', 'cudnn', '`cudnn`'), ('flash-attn-fa', 'flash', 'FlashAttention-2, `flash`'),
            ('flash-attn-fa3', 'flash3', '`flash3`')) names (log, backend, name)
        JOIN "lsai-gh200".runs theirs ON theirs.attention = log LEFT JOIN runs ours ON ours.attention = backend""",
    ),
    Claim(
        "docs/seeds.md",
        "backends-full-h200",
        "The rest is {:.0f} to {:.0f} % faster here",
        """SELECT 100 * (min(ours.rate / theirs.rate) - 1), 100 * (max(ours.rate / theirs.rate) - 1)
        FROM (VALUES ('baseline', 'auto'), ('flash-attn-efficient', 'efficient'), ('flash-attn-cudnn', 'cudnn'),
            ('flash-attn-fa', 'flash'))
            names (log, backend)
        JOIN "lsai-gh200".runs theirs ON theirs.attention = log JOIN runs ours ON ours.attention = backend""",
    ),
    Claim("docs/seeds.md", "lsai-gh200", "Its loss stays {:.1f} nats above the others'", LOSS_OF_THE_FASTEST),
    Claim(
        "docs/seeds.md",
        "seed-001-training-h200",
        "| {:,.0f}, {:,.0f}: {:+.2f} % |",
        """SELECT auto.rate, flash3.rate, 100 * (flash3.rate / auto.rate - 1)
        FROM runs auto JOIN runs flash3 ON auto.attention = 'auto' AND flash3.attention = 'flash3'
            AND auto.outcome = 'completed' AND flash3.outcome = 'completed'""",
    ),
    *(
        Claim(
            "docs/seeds.md",
            "seed-001-training-h200",
            f"| {row} | ... | {{:{digits}}}, {{:{digits}}} |",
            f"SELECT min_by({column}, attention), max_by({column}, attention) FROM runs WHERE outcome = 'completed'",
        )
        for row, column, digits in [
            ("MFU, %", "mfu", ".1f"),
            ("TFLOP/s", "tflops", ".1f"),
            ("tokens that train, %", "trained", ".2f"),
        ]
    ),
    Claim(  # the interval is Student's, of 2 degrees of freedom
        "docs/seeds.md",
        "seed-001-prefill-h200",
        "| prefill of {:,} tokens, ms | ... | {:.1f}, {:.1f}: {:+.2f} % in prompt tokens/s "
        "(90 % interval: {:.2f} to {:.2f}) |",
        """WITH means AS (
            SELECT max(auto.sequence_length) AS tokens, median(auto.seconds) AS auto, median(flash3.seconds) AS flash3,
                avg(ln(auto.seconds / flash3.seconds)) AS gain,
                2.92 * stddev(ln(auto.seconds / flash3.seconds)) / sqrt(count(*)) AS half
            FROM runs auto JOIN runs flash3 USING (seed, repeat)
            WHERE auto.attention = 'auto' AND flash3.attention = 'flash3')
        SELECT tokens, 1000 * auto, 1000 * flash3, 100 * (exp(gain) - 1),
            100 * (exp(gain - half) - 1), 100 * (exp(gain + half) - 1) FROM means""",
    ),
    Claim(
        "docs/seeds.md",
        "seed-001-prefill-h200",
        "{:word} each.",
        "SELECT count(*) // 2 FROM runs WHERE outcome = 'completed'",
    ),
    *(
        calls("seed-002-h200", "float16", text, *names)
        for text, *names in [
            (
                "| 1, 2: 2,048 tokens, batch 16 | ... | {0[ms]:.1f} ms, {0[tflops]:.1f}; {1[tflops]:.0f} TFLOP/s |",
                "math both B16 T2048 H8 D64 causal",
                "flash1 both B16 T2048 H8 D64 causal",
            ),
            (
                "| 3: 512 tokens, batch 1 and 64 | ... | {0[ms]:.3f} and {1[ms]:.3f} ms |",
                "flash1 both B1 T512 H8 D64 causal",
                "flash1 both B64 T512 H8 D64 causal",
            ),
            (
                "| 5: 1,024 tokens, causal and not | ... | {0[ms]:.3f} and {1[ms]:.3f} ms |",
                "flash1 both B16 T1024 H8 D64 causal",
                "flash1 both B16 T1024 H8 D64 full",
            ),
            (
                "| 6: 24 and 64 heads | ... | {0[tflops]:.1f} and {1[tflops]:.0f} TFLOP/s |",
                "flash1 both B16 T512 H24 D64 causal",
                "flash1 both B16 T512 H64 D64 causal",
            ),
            (
                "| 10: head dim 16 and 64 | ... | {0[tflops]:.1f} and {1[tflops]:.1f} TFLOP/s |",
                "flash1 both B16 T512 H8 D16 causal",
                "flash1 both B16 T512 H8 D64 causal",
            ),
            (
                "| 12: 512 tokens, forward | ... | {0[tflops]:.1f}, {1[tflops]:.1f} TFLOP/s |",
                "flash1 forward B16 T512 H8 D64 causal",
                "math forward B16 T512 H8 D64 causal",
            ),
        ]
    ),
    Claim(
        "docs/seeds.md",
        "seed-002-h200",
        "| 4: speedup at 512, 1,024 and 2,048 tokens | ... | {:.1f}, {:.1f}, {:.1f} |",
        """SELECT 1 / list(ratio ORDER BY sequence_length)[1], 1 / list(ratio ORDER BY sequence_length)[2],
            1 / list(ratio ORDER BY sequence_length)[3]
        FROM (
            SELECT sequence_length, max(ms) FILTER (attention = 'flash1') / max(ms) FILTER (attention = 'math') AS ratio
            FROM calls WHERE direction = 'both' AND sequence_length >= 512 AND (batch, heads, head_dim) = (16, 8, 64)
                AND causal AND dtype = 'float16' GROUP BY sequence_length)""",
    ),
    Claim(
        "docs/seeds.md",
        "seed-002-h200",
        "| 8: memory at 2,048 tokens | ... | {:.1f} GB, {:.0f} MB |",
        """SELECT call('math both B16 T2048 H8 D64 causal float16').mb / 1000,
            call('flash1 both B16 T2048 H8 D64 causal float16').mb""",
    ),
    Claim(
        "docs/seeds.md",
        "seed-002-h200",
        "Both passes of 8 heads of dim 64 take {:.1f} GFLOP at 2,048 tokens: 90 ms are {:.1f} TFLOP/s, "
        "and 9 TFLOP/s are {:.0f} ms",
        """SELECT c.ms * c.tflops, c.ms * c.tflops / 90, c.ms * c.tflops / 9
        FROM (SELECT call('math both B16 T2048 H8 D64 causal float16') AS c)""",
    ),
    Claim(
        "docs/seeds.md",
        "seed-002-h200",
        "`flash1` gains {:.0f} to {:.0f} times, plain attention {:.0f}:",
        """WITH theirs AS (  -- each number that the report prints, of both passes or of the forward
            SELECT run_id, entry ->> 'backend' AS attention, unnest(['both', 'forward']) AS direction,
                (entry -> 'numbers' ->> (direction || '_milliseconds'))::DOUBLE AS milliseconds,
                (entry -> 'numbers' ->> (direction || '_tflops'))::DOUBLE AS tflops
            FROM run_records, unnest(from_json(reported, '["JSON"]')) listed (entry)),
        gains AS (
            SELECT attention, coalesce(theirs.milliseconds / calls.milliseconds, calls.tflops / theirs.tflops) AS gain
            FROM theirs JOIN calls USING (run_id, attention, direction))
        SELECT min(gain) FILTER (attention = 'flash1'), max(gain) FILTER (attention = 'flash1'),
            avg(gain) FILTER (attention = 'math') FROM gains""",
    ),
    Claim(
        "docs/seeds.md",
        "seed-002-h200",
        "Of the {} cases in which `flash1` is the faster, {} are in float16",
        """SELECT count(*), count(*) FILTER (dtype = 'float16')
        FROM calls f JOIN calls m USING (run_id, direction, dtype)
        WHERE f.attention = 'flash1' AND m.attention = 'math' AND direction = 'both' AND f.ms < m.ms""",
    ),
    calls(
        "seed-003-kernels-h200",
        "float32",
        "| forward, 512 tokens, float32: manual, tiled | ... | {0[ms]:.3f} ms, {1[ms]:.3f} ms (`portable`) |",
        "math forward B1 T512 H8 D64 full",
        "portable forward B1 T512 H8 D64 full",
    ),
    Claim(
        "docs/seeds.md",
        "seed-003-kernels-h200",
        "manual attention is faster at {} of {} shapes, `portable` at {}. With the backward it is faster at all, "
        "by {:.1f} to {:.1f} times, {:.1f} at 2,048 tokens",
        """WITH ratios AS (
            SELECT direction, p.milliseconds / m.milliseconds AS ratio, sequence_length
            FROM calls m JOIN calls p USING (run_id, direction, sequence_length)
            WHERE m.attention = 'math' AND p.attention = 'portable')
        SELECT count(*) FILTER (direction = 'forward' AND ratio > 1), count(*) FILTER (direction = 'forward'),
            count(*) FILTER (direction = 'forward' AND ratio < 1), min(ratio) FILTER (direction = 'both'),
            max(ratio) FILTER (direction = 'both'), max(ratio) FILTER (direction = 'both' AND sequence_length = 2048)
        FROM ratios""",
    ),
    Claim(
        "docs/seeds.md",
        "seed-003-grid-h100",
        "| {:.0f} to {:.0f} %, {:.0f} to {:.0f} %; {:.0f} and {:.0f} % on average |",
        f"SELECT min(time), max(time), min(memory), max(memory), avg(time), avg(memory) FROM ({PAIRS})",
    ),
    Claim(
        "docs/seeds.md",
        "seed-003-grid-h100",
        "half of the time or less at 2,048 tokens, and {:.0f} % at 16,384",
        f"SELECT max(time) FILTER (tokens = 16384) FROM ({PAIRS}) HAVING max(time) FILTER (tokens = 2048) <= 50",
    ),
    Claim(
        "docs/seeds.md",
        "seed-003-grid-h100",
        "over the {} runs that fit",
        "SELECT count(*) FROM runs WHERE outcome = 'completed'",
    ),
    Claim(
        "docs/seeds.md",
        "seed-003-frontier-h200",
        "| {:,} tokens plain, {:,} with FlashAttention |",
        """SELECT max(value) FILTER (attention = 'math'), max(value) FILTER (attention = 'flash')
        FROM probes JOIN run_records USING (run_id) WHERE outcome = 'fits'""",
    ),
    Claim(
        "docs/seeds.md",
        "seed-003-frontier-h200",
        "Each frontier took {} or {} probes and up to {} above. The forecast was {:.1f} to {:.1f} % too long: "
        "of the peak it is off by {:+.1f} to {:+.1f} %.",
        """WITH frontiers AS (
            SELECT count(*) FILTER (purpose = 'search') AS probes, count(*) FILTER (purpose = 'above') AS above,
                100 * (max(foreseen) / max(value) FILTER (outcome = 'fits') - 1) AS longer FROM probes GROUP BY run_id),
        fitting AS (SELECT 100 * (forecast_bytes / peak_bytes - 1) AS off FROM probes WHERE outcome = 'fits')
        SELECT min(probes), max(probes), max(above), min(longer), max(longer), (SELECT min(off) FROM fitting),
            (SELECT max(off) FROM fitting) FROM frontiers""",
    ),
    Claim(
        "docs/seeds.md",
        "seed-003-frontier-h200",
        "CUDA's own, {:.1f} GiB more than the half that is assumed",
        "SELECT max(outside_bytes) / 2^30 - 0.5 FROM probes WHERE outcome = 'fits'",
    ),
    Claim(
        "docs/seeds.md",
        "seed-004-h200",
        "plain attention {:.0f} GB and {:.1f} ms (theirs 41.7), `flash1` {:.2f} GB and {:.2f} ms (7.3). "
        "PyTorch's plain attention computes in float32 and keeps copies, so that it moves {:.1f} times as much as "
        "theirs",
        """WITH moved AS (
            SELECT attention, (dram_read_bytes + dram_write_bytes) / 1e9 AS gb FROM kernels
            WHERE direction = 'both' AND mode = 'eager' AND batch = 64 AND sequence_length = 1024)
        SELECT math.gb, call('math both B64 T1024 H16 D64 causal bfloat16').ms, flash1.gb,
            call('flash1 both B64 T1024 H16 D64 causal bfloat16').ms, math.gb / 40.3
        FROM moved math JOIN moved flash1 ON math.attention = 'math' AND flash1.attention = 'flash1'""",
    ),
    Claim(
        "docs/seeds.md",
        "seed-004-h200",
        "All {} shapes in bfloat16 are measured, and {:word} in 8 bits",
        """SELECT count(DISTINCT run_id) FILTER (dtype = 'bfloat16'),
            count(DISTINCT run_id) FILTER (dtype = 'float8_e4m3fn') FROM kernels""",
    ),
    *(
        calls("seed-004-h200", "bfloat16", text, *names)
        for text, *names in [
            (
                "| {0[tflops]:.0f} TFLOP/s at one sample of 16 heads; {1[tflops]:.0f} at 8 of 2,048 tokens |",
                "flash1 both B1 T16384 H16 D128 causal",
                "flash1 both B8 T2048 H16 D128 causal",
            ),
            ("| FlashAttention-4 | | {0[tflops]:.0f} TFLOP/s |", "flash4 both B1 T16384 H16 D128 causal"),
            (
                "| `flash1` {0[ms]:,.0f} ms, `flash` {1[ms]:.1f}, FlashAttention-3 {2[ms]:.1f}, "
                "FlashAttention-4 {3[ms]:.1f} |",
                "flash1 forward B1 T128000 H1 D64 causal",
                "flash forward B1 T128000 H1 D64 causal",
                "flash3 forward B1 T128000 H1 D64 causal",
                "flash4 forward B1 T128000 H1 D64 causal",
            ),
        ]
    ),
    Claim(
        "docs/seeds.md",
        "seed-004-h200",
        "| {:.0f} TFLOP/s, {:.0f} % of an H200's |",
        "SELECT c.tflops, c.tflops / 9.894 FROM (SELECT call('flash2 both B1 T16384 H16 D128 causal bfloat16') AS c)",
    ),
    Claim(
        "docs/seeds.md",
        "seed-004-h200",
        "| {:.0f} TFLOP/s, {:.0f} %: {:.1f} times `flash2` |",
        """SELECT c.tflops, c.tflops / 9.894, c.tflops / b.tflops FROM (SELECT
            call('flash2 both B1 T16384 H16 D128 causal bfloat16') AS b,
            call('flash3 both B1 T16384 H16 D128 causal bfloat16') AS c)""",
    ),
    *(
        Claim(
            "docs/seeds.md",
            "seed-004-h200",
            text,
            f"""WITH moved AS (
                SELECT list_position(['math', 'flash1', 'flash2'], attention) AS place,
                    (dram_read_bytes + dram_write_bytes) / 1e9 AS dram, (l2_read_bytes + l2_write_bytes) / 1e9 AS l2,
                    formula_bytes / 1e9 AS formula
                FROM kernels WHERE mode = 'eager' AND sequence_length = 16384 AND heads = 16 AND head_dim = 128
                    AND direction = '{direction}' AND dtype = 'bfloat16' AND place > 0)
            SELECT list(dram ORDER BY place), list(l2 ORDER BY place), list(formula ORDER BY place) FROM moved""",
        )
        for direction, text in [
            (
                "forward",
                "| DRAM {0[0]:.0f}, {0[1]:.1f}, {0[2]:.2f} GB; L2 {1[0]:.0f}, {1[1]:.1f}, {1[2]:.1f} GB; "
                "formula {2[0]:.0f}, {2[1]:.1f}, {2[2]:.1f} GB |",
            ),
            (
                "backward",
                "| DRAM {0[0]:.0f}, {0[1]:.1f}, {0[2]:.2f} GB; L2 {1[0]:.0f}, {1[1]:.0f}, {1[2]:.1f} GB; "
                "formula {2[0]:.0f}, {2[1]:.1f}, {2[2]:.1f} GB |",
            ),
        ]
    ),
    Claim(
        "docs/seeds.md",
        "seed-004-h200",
        "{:.2f} GB by the same product; plain attention ran out of {:.1f} GiB, which asked for {:.0f} GiB more |",
        """SELECT DISTINCT score_bytes / 1e9, regexp_extract(reason, 'capacity of ([\\d.]+) GiB', 1)::DOUBLE,
            regexp_extract(reason, 'allocate ([\\d.]+) GiB', 1)::DOUBLE
        FROM kernels WHERE attention = 'math' AND sequence_length = 128000""",
    ),
    Claim(
        "docs/seeds.md",
        "seed-004-h200",
        "`flash1` is one program on one multiprocessor: {:.0f} times the time of `flash`",
        """SELECT call('flash1 forward B1 T128000 H1 D64 causal bfloat16').ms
            / call('flash forward B1 T128000 H1 D64 causal bfloat16').ms""",
    ),
    calls(
        "seed-004-h200",
        "float8_e4m3fn",
        "`custom` is right and reaches {0[tflops]:.0f} TFLOP/s",
        "custom forward B1 T16384 H16 D128 causal",
    ),
    Claim(
        "docs/benchmarks.md",
        "scaling-h200",
        "| one H200, {} samples in {:word} parts: {:,.0f} (by the clock {:,.0f}), {:.4f} J a token; "
        "each of {:word}, gathered once, {} samples: {:,.0f} ({:,.0f}), {:.4f} J | {} | one: observed; four: open |",
        f"""WITH spent AS ({SPENT})
        SELECT one.batch_size, (one.config ->> '$.train.accumulate')::INT, one.rate_each,
            one.tokens / one.clocked_seconds, one.joules, many.gpus, many.batch_size // many.gpus, many.rate_each,
            many.tokens / many.clocked_seconds / many.gpus, many.joules, one.n
        FROM spent many, spent one WHERE many.factors LIKE '%reshard":false%' AND many.batch_size = 16
            AND one.gpus = 1 AND one.batch_size = 8""",
    ),
    Claim(
        "docs/benchmarks.md",
        "scaling-h200",
        "| gathered once: {:.1f} % with {} samples a GPU, {:.1f} % with {}; gathered for each pass: {:.1f}, {:.1f} % | {} | open |",
        f"""WITH kept AS ({KEPT})
        SELECT max(kept) FILTER (once AND each = 2), 2, max(kept) FILTER (once AND each = 4), 4,
            max(kept) FILTER (NOT once AND each = 2), max(kept) FILTER (NOT once AND each = 4), max(n)
        FROM kept WHERE gpus = 4 AND way = 'FSDP2'""",
    ),
    Claim(
        "docs/benchmarks.md",
        "scaling-h200",
        "| {:,} tokens over four GPUs at 55 % MFU | over {:word}: {:.1f} % | {} | observed |",
        """SELECT sequence_length, gpus, mfu, count(*) OVER (PARTITION BY factors)
        FROM runs WHERE sequence_length = 65536 AND gpus = 4""",
    ),
    Claim(
        "docs/benchmarks.md",
        "custom-h200",
        "| {:word} pairs: {:+.1f} % ({:+.1f} to {:+.1f}) | {} | open |",
        f"WITH gains AS ({GAINS}) SELECT n, gain, low, high, n FROM gains",
    ),
    Claim(
        "docs/benchmarks.md",
        "inference-h200",
        "| {:word} pairs: {:+.2f} % ({:+.2f} to {:+.2f}) | {} | yes |",
        """WITH pairs AS (
            SELECT ln(custom.rate / auto.rate) AS log FROM runs custom JOIN runs auto USING (seed, repeat)
            WHERE custom.attention = 'custom' AND auto.attention = 'auto'),
        means AS (SELECT avg(log) AS mean, 4.303 * stddev(log) / sqrt(count(*)) AS half, count(*) AS n FROM pairs)
        SELECT n, 100 * (exp(mean) - 1), 100 * (exp(mean - half) - 1), 100 * (exp(mean + half) - 1), n FROM means""",
    ),
    Claim(
        "docs/benchmarks.md",
        "kernels-goals-h200",
        "The kernel `custom` in the {:word} cases by which we judge it, in CUDA graphs on {:word} H200s ({} rounds,",
        "SELECT count(*), count(DISTINCT gpu_uuid), (SELECT min(calls) FROM calls) FROM attempts",
    ),
    Claim(
        "docs/benchmarks.md",
        "kernels-goals-h200",
        "| {} | {:.2f} to {:.2f} | {:.2f} to {:.2f} |",
        """WITH ratios AS (
            SELECT head_dim, run_id, direction, median(r.second / own.second) AS ratio
            FROM rounds r JOIN rounds own USING (run_id, direction, mode, round, head_dim)
            WHERE mode = 'graph' AND own.attention = 'custom' AND r.attention IN ('flash3', 'flash4', 'cudnn')
            GROUP BY head_dim, run_id, direction, r.attention),
        shapes AS (SELECT head_dim, run_id, direction, min(ratio) AS ratio FROM ratios GROUP BY ALL)
        SELECT head_dim, min(ratio) FILTER (direction = 'forward'), max(ratio) FILTER (direction = 'forward'),
            min(ratio) FILTER (direction = 'backward'), max(ratio) FILTER (direction = 'backward')
        FROM shapes GROUP BY head_dim""",
    ),
    Claim(
        "docs/benchmarks.md",
        "kernels-goals-h200",
        "| B{} T{} H{}{} D{}, {} | {:.2f} / {:.2f} | {:.2f} / {:.2f} | {:.2f} / {:.2f} | {:.2f} / {:.2f} |",
        """WITH ratios AS (
            SELECT batch, sequence_length, heads, if(kv_heads < heads, ' K' || kv_heads, '') AS kv, head_dim,
                if(causal, 'causal', 'no mask') AS mask, other.attention || own.attention AS pair, direction,
                median(other.second / own.second) AS ratio
            FROM rounds other JOIN rounds own USING
                (run_id, direction, mode, round, batch, sequence_length, heads, kv_heads, head_dim, causal)
            WHERE mode = 'graph' GROUP BY ALL)
        SELECT batch, sequence_length, heads, kv, head_dim, mask,
            max(ratio) FILTER (pair = 'flash3custom' AND direction = 'forward'),
            max(ratio) FILTER (pair = 'flash3custom' AND direction = 'backward'),
            max(ratio) FILTER (pair = 'flash4custom' AND direction = 'forward'),
            max(ratio) FILTER (pair = 'flash4custom' AND direction = 'backward'),
            max(ratio) FILTER (pair = 'cudnncustom' AND direction = 'forward'),
            max(ratio) FILTER (pair = 'cudnncustom' AND direction = 'backward'),
            max(ratio) FILTER (pair = 'flashportable' AND direction = 'forward'),
            max(ratio) FILTER (pair = 'flashportable' AND direction = 'backward')
        FROM ratios GROUP BY ALL""",
    ),
    Claim(  # Student's interval of 4 degrees of freedom
        "docs/benchmarks.md",
        "custom-h200",
        "{:+.1f} % ({:+.1f} to {:+.1f}), {:word} runs each",
        GAINS,
    ),
    Claim(  # least squares with an effect of each GPU: 10 runs, 3 parameters
        "docs/benchmarks.md",
        "custom-h200",
        "{:+.1f} % ({:+.1f} to {:+.1f}) without the difference of the {:word} GPUs",
        """WITH centred AS (
            SELECT ln(rate) - avg(ln(rate)) OVER (PARTITION BY gpu_uuid) AS y, (attention = 'custom')::INT AS own,
                own - avg(own) OVER (PARTITION BY gpu_uuid) AS x FROM runs),
        line AS (
            SELECT regr_slope(y, x) AS gain, regr_sxx(y, x) AS sxx,
                2.365 * sqrt((regr_syy(y, x) - gain * regr_sxy(y, x)) / 7 / sxx) AS half FROM centred)
        SELECT 100 * (exp(gain) - 1), 100 * (exp(gain - half) - 1), 100 * (exp(gain + half) - 1),
            (SELECT count(DISTINCT gpu_uuid) FROM attempts) FROM line""",
    ),
    Claim(  # the two intervals within the runs, as independent errors of logarithms
        "docs/benchmarks.md",
        "fp8-h100",
        "`custom` is {:.2f} times as fast as in bfloat16 ({:.2f} to {:.2f})",
        """WITH b AS (FROM calls WHERE attention = 'custom' AND direction = 'forward' AND dtype = 'bfloat16'),
        f AS (FROM calls WHERE attention = 'custom' AND direction = 'forward' AND dtype = 'float8_e4m3fn')
        SELECT b.ms / f.ms,
            b.ms / f.ms / exp(sqrt(ln(b.ms / b.milliseconds_low) ** 2 + ln(f.milliseconds_high / f.ms) ** 2)),
            b.ms / f.ms * exp(sqrt(ln(b.milliseconds_high / b.ms) ** 2 + ln(f.ms / f.milliseconds_low) ** 2))
        FROM b, f""",
    ),
    Claim(
        "docs/benchmarks.md",
        "fp8-h100",
        "their output is off by {:.0f} to {:.0f} % at 4,096 keys and loses {:.0f} % at 131,072",
        """SELECT 100 * min(relative_error) FILTER (shape LIKE '%T4096 %'),
            100 * max(relative_error) FILTER (shape LIKE '%T4096 %'),
            100 * max(relative_error) FILTER (shape LIKE '%T131072 %')
        FROM verifications
        WHERE name = 'right' AND variant = 'ones' AND shape LIKE '%float8%' AND attention <> 'custom'""",
    ),
    Claim(
        "docs/benchmarks.md",
        "fp8-h100",
        "Ours is off by less than 1e-7 at both. All {:word} find the needle among 131,072 keys",
        """SELECT count(DISTINCT attention) FILTER (variant = 'needle' AND passed AND shape LIKE '%T131072 %')
        FROM verifications WHERE name = 'right' AND shape LIKE '%float8%'
        HAVING max(relative_error) FILTER (variant = 'ones' AND attention = 'custom') < 1e-7""",
    ),
    Claim(  # a run's first reading of its energy may be late by 0.1 s
        "docs/benchmarks.md",
        "speed-h200",
        "{:word} H200s drew {:.0f} to {:.0f} W of their {:.0f}, at {:,.0f} to {:,.0f} MHz of {:,.0f}",
        """WITH counted AS (
            SELECT run_id, sum(energy_joules) / (sum(step_seconds * steps) + 0.1) AS watts,
                min(sm_mhz) AS low, max(sm_mhz) AS high
            FROM step_records WHERE step - steps >= 6 AND step_seconds * steps >= 1 GROUP BY run_id)
        SELECT count(DISTINCT gpu_uuid), min(watts), max(watts), max(power_limit_watts), min(low), max(high),
            max(sm_mhz)
        FROM counted JOIN attempts USING (run_id)""",
    ),
    Claim(
        "docs/benchmarks.md",
        "speed-h200",
        "for {:.0f} to {:.0f} s before training, a step of the second variant would take {:.0f} ms. "
        "It took {:.0f} and {:.0f}, so this floor is {:.0f} % of it",
        """WITH best AS (
            SELECT 1000 * seconds AS ms, 1000 * floor AS floor
            FROM runs JOIN (SELECT run_id, sum(seconds) AS floor FROM step_floor GROUP BY run_id) USING (run_id)
            WHERE factors LIKE '%"train.checkpoint_activations":false%"none"%linear%one_pass%')
        SELECT (SELECT min(seconds) FROM nodes), (SELECT max(seconds) FROM nodes), max(floor), min(ms), max(ms),
            100 * avg(floor / ms) FROM best""",
    ),
    Claim(
        "docs/benchmarks.md",
        "backends-full-h200",
        "pauses for records and audits took {:.1f} to {:.1f} % of the time of the steps",
        """WITH pauses AS (
            SELECT run_id, step, step_seconds * steps AS seconds, epoch(time - lag(time) OVER (
                PARTITION BY run_id, attempt ORDER BY step)) - seconds AS pause FROM step_records),
        shares AS (SELECT 100 * sum(pause) / sum(seconds) AS share FROM pauses WHERE step > 10 GROUP BY run_id)
        SELECT min(share), max(share) FROM shares""",
    ),
    Claim(
        "docs/benchmarks.md",
        "scaling-h200",
        "| {} | {} | {:,.0f} | {} | {:.1f} | {:.1f} | {:.4f} |",
        f"""WITH kept AS ({KEPT})
        SELECT CASE WHEN gpus = 1 THEN 'one GPU' ELSE way || ' over ' || gpus END
                || if(parts > 1, ', in ' || parts || ' parts', '') || if(once, ', gathered once', ''),
            each, rate_each, CASE WHEN gpus = 1 THEN '' ELSE format('{{:.1f}}', kept) END, mfu, gib, joules FROM kept""",
    ),
    Claim(
        "docs/benchmarks.md",
        "scaling-h200",
        "At {} samples a GPU, a profiled step takes {:.0f} ms under FSDP2 over {:word} and {:.0f} on one: products {:.0f} ms longer, "
        "elementwise work (copies of weights and gradients) {:.0f}, attention {:.0f}, and exposed communication {:.0f}; "
        "a quarter of the optimizer gives back {:.0f}",
        """WITH parts AS (
            SELECT part, 1000 * max(p.seconds) FILTER (processes = 4) AS four,
                1000 * max(p.seconds) FILTER (processes = 1) AS one, four - one AS ms
            FROM step_profile p JOIN run_records USING (run_id)
            WHERE phase = 'step' AND batch_size = 2 * processes AND sequence_length = 4096
                AND (processes = 1 OR factors LIKE '%reshard":true%shard":4%') GROUP BY part)
        SELECT 2, sum(four), 4, sum(one), max(ms) FILTER (part = 'products'),
            max(ms) FILTER (part = 'elementwise'), max(ms) FILTER (part = 'attention'),
            max(ms) FILTER (part = 'communication'), -max(ms) FILTER (part = 'optimizer') FROM parts""",
    ),
    Claim(
        "docs/benchmarks.md",
        "scaling-h200",
        "A step begins {:.1f} to {:.1f} s after the start of a run on {:word} GPUs, where {:,} tokens are a sample; on one, "
        "{:.0f} s in the first runs of the machine, whose certificates and compiled blocks the others share, "
        "and {:.0f} s after them",
        """WITH begun AS (
            SELECT gpus, sequence_length, date_diff('microsecond', started_at, time) / 1e6 - step_seconds AS s
            FROM step_records JOIN attempts USING (run_id) JOIN run_records USING (run_id)
            WHERE step = 1 AND sequence_length = 4096)
        SELECT min(s) FILTER (gpus = 4), max(s) FILTER (gpus = 4), 4, 4096, max(s) FILTER (gpus = 1),
            min(s) FILTER (gpus = 1) FROM begun""",
    ),
    Claim(  # FLOP of attention: 12 x layers x heads x head dim x tokens, half of them under the mask
        "docs/benchmarks.md",
        "scaling-h200",
        "{:,} tokens over {:word} GPUs, {:word} run: {:,.0f} tokens/s per GPU, {:.1f} % MFU ({:.1f} % if",
        """SELECT sequence_length, gpus, count(*) OVER (PARTITION BY factors), rate_each, mfu,
            mfu * (1 - 6 * (config ->> '$.model.layers')::INT * (config ->> '$.model.dim')::INT * sequence_length
                / flop_per_token) FROM runs WHERE sequence_length = 65536 AND gpus = 4""",
    ),
    Claim(
        "docs/inference.md",
        "inference-h200",
        "the median of {:,} tokens of an 8B llama after {:,} others takes {:.2f} ms under `custom`, {:.2f} under PyTorch's "
        "choice and {:.2f} under `flash3`",
        f"""WITH tokens AS ({TOKENS})
        SELECT (SELECT count(DISTINCT position) FROM decoding), (SELECT min(position) FROM decoding), max(milliseconds) FILTER (attention = 'custom'),
            max(milliseconds) FILTER (attention = 'auto'), max(milliseconds) FILTER (attention = 'flash3')
        FROM tokens""",
    ),
    Claim(
        "docs/inference.md",
        "inference-h200",
        "Of `custom`'s, attention takes {:.2f} ms, the matrix products {:.2f} and what is elementwise {:.2f}",
        """SELECT 1000 * median(seconds) FILTER (part = 'attention'), 1000 * median(seconds) FILTER (part = 'products'),
            1000 * median(seconds) FILTER (part = 'elementwise')
        FROM step_profile JOIN run_records USING (run_id) WHERE phase = 'decode' AND attention = 'custom'""",
    ),
    Claim(
        "docs/inference.md",
        "prefill-fp8-h200",
        "compares both at {:,} tokens: on H200s, where attention is a third of the work, 8 bits are {:.1f} % faster",
        """SELECT max(sequence_length), 100 * (exp(avg(ln(rate)) FILTER (factors LIKE '%float8%')
            - avg(ln(rate)) FILTER (factors NOT LIKE '%float8%')) - 1) FROM runs""",
    ),
    Claim(
        "docs/inference.md",
        "prefill-fp8-h200",
        "the same work in both, take {:.0f} in place of {:.0f} ms",
        """SELECT 1000 * median(seconds) FILTER (factors LIKE '%float8%'),
            1000 * median(seconds) FILTER (factors NOT LIKE '%float8%')
        FROM step_profile JOIN run_records USING (run_id) WHERE phase = 'step' AND part = 'products'""",
    ),
    Claim(
        "docs/statistics.md",
        "lsai-gh200",
        "In the {:word} public logs of one study ({} records each, margin 0.02 nats), the run that is labeled "
        "FlashAttention-3 but computes something else is {:.3f} to {:.3f} nats above the others: different from all "
        "four. The other four differ by at most {:.3f}: equivalent, all six pairs.",
        """WITH losses AS (
            SELECT attention, avg(loss) AS loss, count(*) AS n FROM step_records JOIN run_records USING (run_id)
            WHERE step > 800 GROUP BY ALL),
        means AS (
            SELECT count(*) AS runs, max(n) AS n, max(loss) AS highest, min(loss) AS lowest,
                max(loss) FILTER (attention <> 'flash-attn-fa3') AS next FROM losses)
        SELECT runs, n, highest - next, highest - lowest, next - lowest FROM means""",
    ),
    Claim(
        "README.md",
        "custom-h200",
        "| Our kernel | in training, not told apart from FlashAttention-3, {:word} runs each;",
        "SELECT (SELECT count(*) FROM runs WHERE attention = 'custom') FROM ranking WHERE kind = 'inconclusive'",
    ),
    Claim(
        "README.md",
        "backends-h200",
        "its first version was {:.1f} % slower",
        """WITH rates AS (SELECT attention, exp(avg(ln(rate))) AS rate FROM runs GROUP BY ALL)
        SELECT 100 * (1 - min(rate) FILTER (attention = 'custom') / min(rate) FILTER (attention = 'flash3')) FROM rates""",
    ),
    Claim(
        "docs/benchmarks.md",
        "custom-h200",
        "In 8B training it is not told apart from FlashAttention-3:",
        "SELECT kind FROM ranking WHERE kind = 'inconclusive'",
    ),
    Claim(
        "docs/benchmarks.md",
        "kernels-goals-h200",
        "Called from Python, `custom` is slower than the faster of PyTorch's `flash` and `cudnn` in {} of {} passes "
        "at the shapes up to {:,} tokens",
        """WITH passes AS (
            SELECT sequence_length, min(milliseconds) FILTER (attention = 'custom') AS own,
                min(milliseconds) FILTER (attention IN ('flash', 'cudnn')) AS theirs
            FROM kernels WHERE mode = 'eager' AND sequence_length <= 4096 GROUP BY run_id, direction, sequence_length)
        SELECT count(*) FILTER (own > theirs), count(*), max(sequence_length) FROM passes""",
    ),
    Claim(
        "docs/benchmarks.md",
        "scaling-h200",
        "on {:word} H200s of one node (8B, samples of {:,} tokens, `custom`; report), {:word} run each so far:",
        "SELECT max(gpus), min(sequence_length), max(repeat) FROM runs WHERE sequence_length = 4096",
    ),
    Claim(
        "docs/backends.md",
        "certificates-h200",
        "On an H200 every backend that runs there is right",
        "SELECT count(*) FROM certificates HAVING bool_and(verdict IN ('right', 'unsupported'))",
    ),
]

EXEMPT = [
    Exempt("", r"\b(8|16) bits\b", "a precision"),
    Exempt("README.md", "four generations", "the name of a report"),
    Exempt("docs/questions.md", "ten common questions", "questions of this page"),
    Exempt("docs/inference.md", r"^\| `.*", "keys of a study and their defaults"),
    Exempt("docs/training.md", r"^\| `.*", "keys of a study and their values"),
    Exempt(
        "docs/scaling.md", r"\[1, 2, 4]|\[2, 4, 8]|1, 2 and 4 processes|--parallel 1", "values of settings"
    ),
    Exempt(
        "docs/backends.md", "off by 0.8 to 1.4 roundings", "of a CPU; the report is named for what follows"
    ),
    Exempt("docs/benchmarks.md", "at 131,072, since|B1 T16384 H16 D128", "a setting"),
    Exempt("docs/benchmarks.md", "goal: 92 %", "a goal"),
    Exempt("docs/benchmarks.md", "Torch 2.11", "a version"),
    Exempt(
        "docs/benchmarks.md",
        r"^- .*`(benchmarks|tests)/[\w/]+\.py`.*",
        "of the script that it names, whose output is in no report",
    ),
    Exempt("docs/seeds.md", r"\b00\d\b", "the number of a study"),
    Exempt(
        "docs/benchmarks.md",
        r"an 8B llama at 12,000 tokens/s|Runs of 32,768 and 131,072 tokens, and of 65,536 on|FSDP2 over four GPUs keeps 95 % of|over four GPUs at 55 % MFU|"
        "With 95 % intervals.*|`flash3`, within 1 %",
        "goals",
    ),
    Exempt(
        "docs/seeds.md",
        r"^\|[^|]*\|[^|]*\|(?=[^|]*\|$)",
        "theirs, of which no records are here, and the row's setting",
    ),
    Exempt(
        "docs/seeds.md",
        r"prints 2.95 %; its own numbers give 2.97 %|\(theirs 41.7\)|\(7.3\)|in 0.17 ms",
        "theirs",
    ),
    Exempt(
        "docs/seeds.md", "0.777 times as fast, and 3.3 times|The 40.3 and 4.4 GB|over 65 % of it", "theirs"
    ),
    Exempt("docs/seeds.md", "`allclose` at 0.001|bound of 0.5 %|five correctness tests", "theirs"),
    Exempt(
        "docs/seeds.md",
        r"Table 1 and section 5|\(figure 2:|Figures 4 and 12|Engineering, 7.4\)",
        "a place in their text",
    ),
    Exempt("docs/seeds.md", "medians after step 10", "the length of the warm-up"),
    Exempt(
        "docs/seeds.md",
        "15 times a T4's float16 peak and 15 times its bandwidth|9 TFLOP/s are above the 8.1 of a T4",
        "data sheets",
    ),
    Exempt(
        "docs/seeds.md", "a peak of 989 TFLOP/s|L4's 24 GB|L4 has 24 GB|132 multiprocessors", "data sheets"
    ),
    Exempt(
        "docs/seeds.md",
        "64 samples of 1,024 tokens, 16 heads of dim 64|batch of 16 with 12 heads of dim 64",
        "a setting",
    ),
    Exempt(
        "docs/seeds.md",
        "batch 1, 8 heads of dim 64|16,384 tokens, 16 heads of dim 128|head of 128,000 tokens",
        "a setting",
    ),
    Exempt(
        "docs/seeds.md", "at depth 4, and depths 12 and 24|disagree at 512 tokens|16 programs", "a setting"
    ),
    Exempt(
        "docs/seeds.md",
        r"off by -1.5 to \+0.4 %",
        "of the script that it names, which computes with a forecast of ours",
    ),
    Exempt("docs/seeds.md", "67.1 MB, which are 64 MiB", "a product of the row's numbers"),
    Exempt("docs/seeds.md", "Of the four only", "the generations of the report"),
]


class Unit(NamedTuple):
    """A row of a table, an item of a list or a paragraph, as it is read, and the reports that it names.

    Those are the reports linked since its heading, but of a row that links some these alone.
    """

    text: str
    reports: frozenset[str]


class Text(string.Formatter):
    """Formats as the pages do: a missing value is a dash, and small whole numbers can be words."""

    def format_field(self, value: Any, format_spec: str) -> str:
        if value is None:
            return "\N{EN DASH}"
        if format_spec in {"word", "Word"}:
            return WORDS[value] if format_spec == "word" else WORDS[value].capitalize()
        return str(super().format_field(value, format_spec))


def units(page: str) -> list[Unit]:
    """Parts of a page outside of code."""
    blocks: list[list[str]] = [[]]
    code = False
    for line in page.splitlines():
        fence = line.startswith("```")
        code ^= fence
        if code or fence or not line.strip() or (line.startswith("    ") and not blocks[-1]):
            blocks.append([])
        elif line.startswith(("#", "|", "- ")):
            blocks.append([line])
        else:
            blocks[-1].append(line.strip())
    section_reports: frozenset[str] = frozenset()
    parts = []
    for text in (" ".join(block) for block in blocks if block):
        if text.startswith("#"):
            section_reports = frozenset()
        reports = frozenset(re.findall(r"reports/published/([\w-]+)/", text))
        section_reports |= reports
        words = re.sub(r"<[^>]*>", "", re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", text))
        parts.append(Unit(words, reports if reports and text.startswith("|") else section_reports))
    return parts


def spans(text: str, unit: str) -> list[tuple[int, int]]:
    """Where a unit has a text, of which ` ... ` stands for any other; empty: nowhere."""
    pattern = ")(?:.*?)(".join(map(re.escape, text.split(" ... ")))
    match = re.search(rf"(?<![\d.,])({pattern})(?![.,]?\d)", unit)
    return [match.span(n + 1) for n in range(len(match.groups()))] if match else []


def numbers(unit: str, covered: list[tuple[int, int]]) -> list[str]:
    """Numbers outside of the covered parts of a unit, from three on also as words.

    Digits that touch letters are of a name, such as H200, 8B or FlashAttention-3: the pages write units apart.
    """
    digits = r"(?<![A-Za-z_.\d])(?<![A-Za-z]-)[+-]?\d+(?:,\d{3})*(?:\.\d+)?(?!\w|\.\d)"
    return [
        match[0]
        for match in re.finditer(rf"{digits}|\b(?i:{'|'.join(WORDS[3:])})\b", unit)
        if not any(start <= match.start() and match.end() <= end for start, end in covered)
    ]


@cache
def database() -> duckdb.DuckDBPyConnection:
    return duckdb.connect()


@cache
def tables(report: str) -> None:
    """Give each raw table of a report, and each of its findings, a name in a schema of the report's."""
    sql, data = database().execute, PUBLISHED / report / "data"
    sql(f'CREATE SCHEMA "{report}"; USE "{report}"')
    for path in sorted([*data.glob("records/*.parquet"), *data.glob("findings/*.csv")]):
        sql(f"CREATE VIEW {path.stem} AS FROM '{path}'")
    sql(f"CREATE VIEW runs AS {RUNS}; CREATE VIEW rounds AS {ROUNDS}; CREATE VIEW calls AS {CALLS}")
    sql("CREATE MACRO call(which) AS (SELECT c FROM calls c WHERE name = which)")


@cache
def values(claim: Claim) -> list[str]:
    """The claim's text with the values of each row of its query."""
    for report in {claim.report, *re.findall(r'"([\w-]+)"\.', claim.query)}:
        tables(report)
    rows = database().execute(f'USE "{claim.report}"').execute(claim.query).fetchall()
    return [Text().format(claim.text, *row) for row in rows]


def wrong(claim: Claim, page: list[Unit]) -> list[str]:
    """What of a claim the page does not say, or says without naming the report."""
    missing = [
        text
        for text in values(claim)
        if not any(spans(text, unit.text) and claim.report in unit.reports for unit in page)
    ]
    return missing if values(claim) else [f"no row of: {claim.query}"]


def escaped(name: str, page: list[Unit]) -> list[str]:
    """Numbers of a page, since a heading after which a report is linked, that are of no claim and not exempted."""
    texts = [text for claim in CLAIMS if claim.page == name for text in values(claim)]
    patterns = [exempt.text for exempt in EXEMPT if exempt.page in {"", name}]
    escapes = []
    for unit in page:
        if unit.reports:
            covered = [span for text in texts for span in spans(text, unit.text)]
            covered += [match.span() for pattern in patterns for match in re.finditer(pattern, unit.text)]
            escapes += [f"{number} of: {unit.text}" for number in numbers(unit.text, covered)]
    return escapes


# A log of what was tried is history: its numbers are of the kernels of their day.
PAGES = {
    name: text
    for path in [REPOSITORY / "README.md", *sorted(REPOSITORY.glob("docs/*.md"))]
    if "reports/published/" in (text := path.read_text())
    and (name := str(path.relative_to(REPOSITORY))) != "docs/kernel-log.md"
}


def case(claim: Claim) -> str:
    return f"{Path(claim.page).stem}-{claim.report}-{CLAIMS.index(claim)}"


@pytest.mark.parametrize("claim", CLAIMS, ids=case)
def test_a_page_says_what_the_records_of_the_report_that_it_names_say(claim: Claim) -> None:
    assert wrong(claim, units(PAGES[claim.page])) == []


@pytest.mark.parametrize("claim", [claim for claim in CLAIMS if "{" in claim.text], ids=case)
def test_a_change_of_any_number_of_a_claim_is_seen(claim: Claim) -> None:
    next_digit = str.maketrans("0123456789", "1234567890")
    for text in values(claim):
        page = []
        for unit in units(PAGES[claim.page]):
            changed = unit.text
            for start, end in reversed(spans(text, changed)):
                part = re.sub(rf"\b({'|'.join(WORDS)})\b", "many", changed[start:end].translate(next_digit))
                changed = changed[:start] + part + changed[end:]
            page.append(unit._replace(text=changed))
        assert text in wrong(claim, page)


@pytest.mark.parametrize("name", PAGES)
def test_no_number_after_a_link_to_a_report_escapes(name: str) -> None:
    assert escaped(name, units(PAGES[name])) == []


def test_a_number_that_is_added_to_a_copied_page_is_named(tmp_path: Path) -> None:
    copy = tmp_path / "README.md"
    added = "It is 0.7 % faster ([report](reports/published/inference-h200/index.html))."
    copy.write_text(f"{PAGES['README.md']}\n{added}\n")
    escapes = escaped("README.md", units(PAGES["README.md"]))
    assert escaped("README.md", units(copy.read_text())) == [*escapes, "0.7 of: It is 0.7 % faster (report)."]


@pytest.mark.parametrize("exempt", EXEMPT, ids=[exempt.text[:20] for exempt in EXEMPT])
def test_what_is_exempted_is_there(exempt: Exempt) -> None:
    pages = PAGES.values() if not exempt.page else [PAGES[exempt.page]]
    assert any(re.search(f"(?m){exempt.text}", unit.text) for page in pages for unit in units(page))
