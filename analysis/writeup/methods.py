"""The paragraph of methods: what was run and measured, and how, with references to what is behind it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from analysis.query.latex import escaped, said
from analysis.report.build import Contents
from analysis.wording import drift, listed
from analysis.writeup.references import of_backend, used


def methods(contents: Contents) -> str:
    """LaTeX of one paragraph."""
    return " ".join(filter(None, _sentences(contents, set(used(contents))))) + "\n"


def _sentences(contents: Contents, keys: set[str]) -> Iterator[str]:
    facts, task = contents.facts, contents.task
    ran = said(contents.answer.ran.text.removesuffix("."))
    yield f"{ran}{_cite(keys, *task.writeup.references)}."
    backends = {name: of_backend(name) for name in task.writeup.backends(facts)}
    parts = [rf"\texttt{{{escaped(name)}}}" + _cite(set(cited), *cited) for name, cited in backends.items()]
    yield f"Backends: {', '.join(parts)}." if parts else ""
    if labels := sorted(facts.imported):
        yield said(f"Imported, so made by other programs and without a certificate: {listed(labels)}.")
    yield r"Table~\ref{tab:setup} gives the setup."
    load = "" if task.calls_every_backend else f" Load: {contents.comparison.load}."
    yield said(f"Order of the runs: {contents.comparison.order}.{load}")
    yield from task.writeup.methods(facts.runs, partial(_cite, keys))
    if task.calls_every_backend:
        return
    with_rate = [group.tokens_per_second.telling for group in facts.groups if group.tokens_per_second]
    if methods := "; ".join(dict.fromkeys(estimate.method for estimate in with_rate)):
        cited = _cite(keys, "student1908", "hettmansperger1986")
        yield f"Groups are given as medians. Their intervals: {said(methods)}{cited}."
    yield from _comparisons(contents, keys)
    yield said(drift(contents.comparison.drift))
    if contents.comparison.gpus:
        yield said(contents.comparison.gpus.sentence)


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
    if comparison.decoding:
        yield "The seconds of a decoded token are tested in the same way, apart."
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
