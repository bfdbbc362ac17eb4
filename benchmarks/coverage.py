"""How often intervals hold the truth and how often tests are wrong: the tables of docs/statistics.md.

python benchmarks/coverage.py [--studies 20000]

By simulation, seeded: the same numbers every time. Takes about a minute.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from math import log
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from analysis.stats.estimate import error_of_mean
from analysis.stats.repeats import look
from analysis.stats.student import quantiles
from tests.analysis.stats.simulate import autoregression, held_between, held_within, with_spikes

Draw = np.random.Generator


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--studies", type=int, default=20_000, help="simulated runs or studies per number")
    studies: int = options.parse_args().studies
    for title, table in (
        ("Within a run: the median, % held", within),
        ("Within a run: the mean, % held by 95 % and by 90 % intervals", of_mean),
        ("Between runs: the median, % held", between),
        ("Equal groups told apart in % of studies, paired / unpaired", ranking),
        (
            "After stopping at a width: % of studies whose interval misses the truth, at the worst target",
            looks,
        ),
        ("Drift found in % of studies, by its size", drift),
    ):
        print(f"\n{title}\n")
        table(np.random.default_rng(1), studies)


def within(draw: Draw, studies: int) -> None:
    truth = float(np.median(with_spikes(draw, draw.standard_normal(4_000_000))))
    correlations = (0.0, 0.2, 0.4, 0.6, 0.8)
    heads = [*(f"{each}" for each in correlations), *(f"spikes, {each}" for each in (0.0, 0.4, 0.8))]
    swings = (0.8, 0.9, 0.95)
    header("records", [*heads, *(f"swing {each}" for each in swings)])
    for n in (24, 30, 40, 47, 48, 64, 100, 200, 400):
        runs = max(2000, studies * 40 // max(n, 40))
        shares = [held_within(autoregression(draw, runs, n, each), 0.0) for each in correlations]
        for each in (0.0, 0.4, 0.8):
            shares.append(held_within(with_spikes(draw, autoregression(draw, runs, n, each)), truth))
        for each in swings:
            jitter = draw.standard_normal((runs, n))
            shares.append(held_within(autoregression(draw, runs, n, each) + jitter, 0.0))
        row(n, shares)


def of_mean(draw: Draw, studies: int) -> None:
    correlations = (0.0, 0.4, 0.8)
    header("records", [f"{level}, {each}" for level in ("95 %", "90 %") for each in correlations])
    for n in (24, 30, 40, 48, 100, 200):
        shares = []
        for level in (0.95, 0.9):
            for each in correlations:
                values = autoregression(draw, studies * 40 // max(n, 40), n, each)
                found = error_of_mean(values)
                half = quantiles((1 + level) / 2, found.freedom) * np.sqrt(found.variance)
                shares.append(float((np.abs(values.mean(1)) <= half).mean()))
        row(n, shares)


def between(draw: Draw, studies: int) -> None:
    kinds: dict[str, tuple[Callable[[tuple[int, int]], np.ndarray], float]] = {
        "lognormal": (lambda shape: draw.normal(0, 0.3, shape), 0.0),
        "normal, 5 %": (lambda shape: np.log(draw.normal(1, 0.05, shape)), 0.0),
        "late by 5 %, exponential": (
            lambda shape: np.log1p(0.05 * draw.exponential(size=shape)),
            log(1 + 0.05 * log(2)),
        ),
        "Student's t, 3": (lambda shape: draw.standard_t(3, shape), 0.0),
        "uniform": (lambda shape: draw.uniform(-1, 1, shape), 0.0),
    }
    header("runs", list(kinds))
    for n in (2, 3, 4, 5, 6, 7, 8, 10, 15, 20, 30, 40):
        row(n, [held_between(noise((studies, n)), truth) for noise, truth in kinds.values()])


def ranking(draw: Draw, studies: int) -> None:
    """Holm rejects something if and only if the smallest p value is below 5 % over the number of pairs."""
    kinds: dict[str, Callable[[tuple[int, ...]], np.ndarray]] = {
        "normal": lambda shape: draw.normal(0, 0.05, shape),
        "late": lambda shape: np.log1p(0.05 * draw.exponential(size=shape)),
        "spikes": lambda shape: np.where(draw.random(shape) < 0.1, 0.4, 0.01 * draw.standard_normal(shape)),
    }
    sizes = (2, 3, 4, 5, 7, 10)
    header("groups, noise", [f"{n} runs" for n in sizes])
    for groups in (2, 3, 5, 9):
        for name, noise in kinds.items():
            cells = []
            for n in sizes:
                smallest = least_p(noise((studies // 2, groups, n)), n)
                cells.append(" / ".join(f"{100 * share:.1f}" for share in smallest))
            print(f"| {groups}, {name} | {' | '.join(cells)} |")


def least_p(logs: np.ndarray, n: int) -> list[float]:
    """Shares of studies with any pair told apart, paired and unpaired: student.compared over many studies."""
    groups = logs.shape[1]
    pairs = [(i, j) for i in range(groups) for j in range(i)]
    critical = float(quantiles(1 - 0.025 / len(pairs), np.float64(n - 1)))
    spread = logs.var(axis=2, ddof=1)
    told = np.zeros((2, len(logs)), dtype=bool)
    for i, j in pairs:
        apart = np.abs(logs[:, i].mean(1) - logs[:, j].mean(1))
        told[0] |= apart > critical * (logs[:, i] - logs[:, j]).std(axis=1, ddof=1) / np.sqrt(n)
        told[1] |= apart > critical * np.sqrt((spread[:, i] + spread[:, j]) / n)
    return [float(each.mean()) for each in told]


def looks(draw: Draw, studies: int) -> None:
    kinds: dict[str, Callable[[tuple[int, int]], np.ndarray]] = {
        "normal": lambda shape: draw.normal(0, 0.01, shape),
        "Laplace": lambda shape: draw.laplace(0, 0.01, shape),
        "spikes in either": lambda shape: (
            0.01 * draw.standard_normal(shape)
            + 0.3 * ((draw.random(shape) < 0.1).astype(float) - (draw.random(shape) < 0.1))
        ),
        "skewed: one group late, exponential": lambda shape: (
            0.01 * (draw.exponential(size=shape) - 1) + 0.005 * draw.standard_normal(shape)
        ),
    }
    header("at most", list(kinds))
    for at_most in (3, 4, 6, 12, 30):
        row(at_most, [worst_miss(noise((studies, at_most)), at_most) for noise in kinds.values()])


def worst_miss(logs: np.ndarray, at_most: int) -> float:
    counts = np.arange(1, at_most + 1)
    mean = logs.cumsum(1) / counts
    variance = ((logs**2).cumsum(1) - counts * mean**2) / np.maximum(counts - 1, 1)
    half = np.sqrt(np.maximum(variance, 0) / counts)[:, 2:] * factors(at_most)
    rows, worst = np.arange(len(logs)), 0.0
    for target in np.geomspace(0.0015, 0.06, 24):
        narrow = half <= target
        stop = np.where(narrow.any(1), narrow.argmax(1), at_most - 3)
        worst = max(worst, float((np.abs(mean[rows, stop + 2]) > half[rows, stop]).mean()))
    return worst


def factors(at_most: int) -> np.ndarray:
    """Half widths of the looks' intervals over their standard errors, taken from `look` itself."""
    found = []
    for n in range(3, at_most + 1):
        logs = 0.001 * np.linspace(-1, 1, n)
        high = look([(1.0, float(np.exp(each))) for each in logs], 1.0, at_most).high
        assert high
        found.append(log(high) / (logs.std(ddof=1) / np.sqrt(n)))
    return np.array(found)


def drift(draw: Draw, studies: int) -> None:
    sizes = (0, 1, 2, 4, 8)
    header("blocks", [f"{each} x the noise of a block" if each else "none" for each in sizes])
    for count in (3, 4, 5, 6, 8, 12):
        x = np.arange(count) - (count - 1) / 2
        shares = []
        for size in sizes:
            y = draw.standard_normal((studies, count)) + size * x / (count - 1)
            slope = (y * x).sum(1) / (x @ x)
            rest = y - y.mean(1, keepdims=True) - slope[:, None] * x
            error = np.sqrt((rest**2).sum(1) / (count - 2) / (x @ x))
            critical = float(quantiles(0.975, np.float64(count - 2)))
            shares.append(float((np.abs(slope) > critical * error).mean()))
        row(count, shares)


def header(first: str, heads: Sequence[str]) -> None:
    print(f"| {first} | {' | '.join(heads)} |\n|{'---|' * (len(heads) + 1)}")


def row(first: object, shares: Sequence[float]) -> None:
    print(f"| {first} | {' | '.join(f'{100 * share:.1f}' for share in shares)} |")


if __name__ == "__main__":
    main()
