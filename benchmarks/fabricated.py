"""Run folders for the benchmarks, as launchers and trainers write them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).resolve().parents[1]
BACKENDS = ("auto", "cudnn", "efficient", "flash", "flash2", "flash3", "tiled", "custom")
_FORMS = {"999999": "%d", "12:00:00": "12:%02d:%02d", "99.99": "%r", "77.77": "%r", "0.999999": "%r"}
LEARNING_RATES = (1e-5, 2e-5, 5e-5, 1e-4, 2e-4)


def fabricate(root: Path, runs: int, records: int, studies: tuple[str, ...] = ("many",)) -> None:
    """Write completed runs, through the records' own models, evenly over the studies."""
    sys.path.insert(0, str(HERE))
    for number in range(runs):
        _run(root, studies[number % len(studies)], number // len(studies), records)


def _run(root: Path, study: str, number: int, records: int) -> None:
    from tests.analysis.fabricate import START, Folder, plan

    backend = BACKENDS[number % len(BACKENDS)]
    rate = LEARNING_RATES[number // len(BACKENDS) % len(LEARNING_RATES)]
    seed = number // (len(BACKENDS) * len(LEARNING_RATES))
    factors = {"attention": backend, "train.learning_rate": rate, "seed": seed}
    run = plan(f"r{number:05}", study, backend, seed, records, factors=factors, group=f"{backend}{rate}")
    folder = Folder(root, run)
    folder.event("claimed", executor="local", host="login1", pid=7)
    path = folder.start()
    folder.step(999_999, seconds=0.999_999, steps=1, loss=99.99, grad_norm=77.77, time=START)
    template = (path / "steps.jsonl").read_text()
    for value, form in _FORMS.items():
        template = template.replace(value, form, 1)
    steps = list(_steps(number, records))
    (path / "steps.jsonl").write_text("".join(template % each for each in steps))
    seconds = 1 + sum(each[-1] for each in steps)
    folder.end(seconds=seconds, final_loss=steps[-1][3])  # as the steps say, so that an audit finds nothing
    folder.event("ended", outcome="completed", after=seconds + 1)


def _steps(number: int, records: int) -> Iterator[tuple[int, int, int, float, float, float]]:
    """Step, minute, second, loss, gradient norm and seconds: no two runs are alike."""
    for step in range(1, records + 1):
        noise = ((step * 7919 + number * 104_729) % 99_991) / 99_991
        yield (
            step,
            step // 150 % 60,
            step * 2 // 5 % 60,
            10 - step / 500 + noise / 10,
            1 + noise,
            0.4 + noise / 100,
        )
