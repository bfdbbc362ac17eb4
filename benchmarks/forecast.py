"""The memory forecast of `launch` against the peak that was measured, for the completed runs of reports.

.venv/bin/python benchmarks/forecast.py reports/published/seed-003-grid-h100 ...

Signed: above zero, the forecast is too high. Peaks are what PyTorch allocated on the GPU that needed most.
"""

from __future__ import annotations

import sys
from operator import attrgetter
from pathlib import Path

import duckdb

from model.measure.memory import needed
from model.record.config import RunConfig

PEAKS = """
SELECT r.config, max(a.peak_memory_bytes) AS measured
FROM '{0}/run_records.parquet' r JOIN '{0}/attempts.parquet' a USING (study, run_id)
WHERE a.outcome = 'completed' AND a.gpus > 0 AND r.imported IS NULL
GROUP BY ALL HAVING measured > 0 ORDER BY measured"""


def main() -> None:
    """Print a line for each configuration of a report, and the range of their errors."""
    for report in sys.argv[1:]:
        errors = []
        for text, measured in duckdb.sql(PEAKS.format(Path(report) / "data/records")).fetchall():
            config = RunConfig.model_validate_json(text)
            if forecast := needed(config):
                errors.append(100 * (forecast / measured - 1))
                model, tokens = config.model, attrgetter(config.section.length_key)(config)
                sizes = f"dim {model.dim}, {model.layers} layers, {tokens} tokens"
                print(f"{errors[-1]:+6.1f} %  {measured / 2**30:7.2f} GiB  {config.attention}, {sizes}")
        if errors:
            ends = f"{min(errors):+.1f} to {max(errors):+.1f} %"
            print(f"{report}: {len(errors)} configurations, {ends}")


if __name__ == "__main__":
    main()
