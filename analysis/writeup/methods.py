"""The paragraph of methods: what was run and measured, and how, with references to what is behind it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from analysis.query.latex import escaped, said
from analysis.report.build import WARMUP_RULE, Contents
from analysis.report.facts import Row
from analysis.wording import drift, listed
from analysis.writeup.references import of_backend, used


def methods(contents: Contents) -> str:
    """LaTeX of one paragraph."""
    return " ".join(filter(None, _sentences(contents, set(used(contents))))) + "\n"


def _sentences(contents: Contents, keys: set[str]) -> Iterator[str]:
    own = [run for run in contents.facts.runs if not run["imported"]]
    ran = said(contents.answer.ran.text.removesuffix("."))
    known_for = ("touvron2023llama", "loshchilov2019adamw") if not contents.facts.calls else ()
    yield f"{ran}{_cite(keys, *known_for)}."
    if contents.facts.calls:
        yield from _calls(contents)
        return
    backends = {run["attention"]: of_backend(run["attention"]) for run in own if run["device"]}
    yield _cited({name: references for name, references in backends.items() if name})
    if labels := sorted(contents.facts.imported):
        yield said(f"Imported, so made by other programs and without a certificate: {listed(labels)}.")
    yield r"Table~\ref{tab:setup} gives the setup."
    yield said(f"Order of the runs: {contents.comparison.order}. Load: {contents.comparison.load}.")
    if contents.facts.infers:
        yield from _latencies(contents.facts.runs, keys)
    else:
        yield from rates(contents.facts.runs, keys)
    with_rate = [group.tokens_per_second for group in contents.facts.groups if group.tokens_per_second]
    if methods := "; ".join(dict.fromkeys(estimate.method for estimate in with_rate)):
        cited = _cite(keys, "student1908", "hettmansperger1986")
        yield f"Groups are given as medians. Their intervals: {said(methods)}{cited}."
    yield from _comparisons(contents, keys)
    yield said(drift(contents.comparison.drift))
    if contents.comparison.gpus:
        yield said(contents.comparison.gpus.sentence)


def _calls(contents: Contents) -> Iterator[str]:
    """The paragraph for runs that time attention alone."""
    names = sorted({row["attention"] for row in contents.facts.kernels if row["milliseconds"] is not None})
    yield _cited({name: of_backend(name) for name in names})
    yield r"Table~\ref{tab:setup} gives the setup."
    yield said(f"Order of the runs: {contents.comparison.order}.")
    yield (
        "In each round all backends of a shape are called once in one process, in random order, on the same "
        "new numbers and on cold caches; a call is timed by events of the device, on a CPU by the host's "
        "clock. "
        "Kernel TFLOP/s count $4BHS^2D$ FLOP forward, half of that with a causal mask, and 2.5 times that "
        "backward. Medians are over the calls of a process, their intervals between order statistics."
    )


def _cited(backends: Mapping[str, tuple[str, ...]]) -> str:
    parts = [rf"\texttt{{{escaped(name)}}}" + _cite(set(keys), *keys) for name, keys in backends.items()]
    return f"Backends: {', '.join(parts)}." if parts else ""


def rates(runs: Sequence[Row], keys: set[str]) -> Iterator[str]:
    """How rates were measured; how a step was timed only of the runs of this program."""
    steps = sorted({run["warmup_steps"] for run in runs if run["step_seconds"] is not None})
    if not steps:
        yield "No rate was measured."
        return
    which = " or ".join(map(str, steps))
    own = [run for run in runs if not run["imported"]]
    if own:
        others = " in our own runs" if len(own) < len(runs) else ""
        clocked = all(run["data_wait_percentage"] is not None for run in own)  # else by older versions
        how = "by the device's own clock" if clocked else "with the device synchronised at both ends"
        yield f"A step is timed {how}{others}."
    yield escaped(f"The warm-up, here the first {which} steps, does not count: {WARMUP_RULE}.")
    yield (
        "A run's rate is its tokens per step divided by the median of its seconds per step; rates are "
        f"derived from seconds and never averaged{_cite(keys, 'hoefler2015')}."
    )
    if "chowdhery2022palm" in keys:
        yield (
            "Model FLOPs utilisation is $(6N + 12LHQT)$ times tokens per second over the peak of the data "
            f"sheet{_cite(keys, 'chowdhery2022palm')}, without a discount for causality; $N$ leaves out the "
            "input embedding."
        )


def _latencies(runs: Sequence[Row], keys: set[str]) -> Iterator[str]:
    steps = sorted({run["warmup_steps"] for run in runs if run["step_seconds"] is not None})
    if not steps:
        yield "No prefill was measured."
        return
    yield (
        "A prefill reads the whole prompt of each sample up to the logits of its last position, timed by "
        f"the device's own clock; the first {' or '.join(map(str, steps))} of a run do not count. A run's "
        f"latency is the median of its prefills, of which its rate is derived{_cite(keys, 'hoefler2015')}."
    )
    if any(run["decode_seconds"] for run in runs):
        yield (
            "Tokens are decoded greedily with a cache of keys and values; each position is timed in the "
            "second of two passes."
        )
    if "chowdhery2022palm" in keys:
        yield (
            "Model FLOPs utilisation is that of the forward alone, $(2N + 2VD/T + 4LHQT)$ times tokens per "
            f"second over the peak of the data sheet{_cite(keys, 'chowdhery2022palm')}; $N$ leaves out the "
            "input embedding and the output head, whose $VD$ parameters count for the last token of a prompt."
        )


def _comparisons(contents: Contents, keys: set[str]) -> Iterator[str]:
    comparison = contents.comparison
    if comparison.rates.compared:
        methods = "; ".join(dict.fromkeys(pair.verdict.method for pair in comparison.rates.compared))
        yield f"Rates against the baseline: {said(methods)}{_cite(keys, 'schuirmann1987')}."
    if comparison.rates.rankings:
        yield (
            "All pairs of groups with repeats are tested on the logarithm of their seconds per token, and "
            "Holm's correction holds the chance of any false difference to "
            f"5\\,\\%{_cite(keys, 'holm1979')}; what no test tells apart shares a "
            f"tier{_cite(keys, 'piepho2004')}."
        )
    if comparison.losses:
        methods = "; ".join(dict.fromkeys(pair.verdict.method for pair in comparison.losses))
        yield (
            "Losses are compared over the last fifth of the steps, paired by step between runs with the same "
            f"seed, data and batches: {said(methods)}{_cite(keys, 'schuirmann1987')}."
        )


def _cite(cited: set[str], *keys: str) -> str:
    """A citation of those keys that are among the references."""
    own = [key for key in keys if key in cited]
    return rf"~\cite{{{','.join(own)}}}" if own else ""
