"""Every kind of sentence, cell and small figure of the overview, each with what it should say of a study.

A text here is true: its numbers are computed by `truth` from the raw records, with all their digits. A page may
round them. `SENTENCES` has them by place on the page, `CELLS` by table and column. `titles` has the headlines of
figures, `listed` all else.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from itertools import combinations, pairwise
from math import exp
from statistics import fmean
from statistics import median as plain_median
from typing import Any, TypeVar

from tests.oracle import calls, series
from tests.oracle.truth import (
    GIB,
    Run,
    Study,
    Value,
    arithmetic_median,
    deviation,
    drift,
    log_ratio,
    median,
    over_runs,
    t_quantile,
)

Said = Callable[[Study], Iterator[str]]
SENTENCES: dict[str, dict[str, Said]] = {}
CELLS: dict[str, dict[str, Callable[[Study, str], tuple[str, str]]]] = {}  # text, and the note on it
PANELS: dict[str, Callable[[Study, str], Value | None]] = {}  # small figures with bars
NONE = "\N{EN DASH}"


def said(place: str, before: Said | None = None) -> Callable[[Said], Said]:
    """The kind of a sentence at a place of the overview; `before` another kind where the order matters."""

    def put(kind: Said) -> Said:
        sentences = SENTENCES.setdefault(place, {})
        index = list(sentences).index(before.__name__) if before else len(sentences)
        ordered = [*sentences.items()]
        ordered.insert(index, (kind.__name__, kind))
        SENTENCES[place] = dict(ordered)
        return kind

    return put


CellKind = TypeVar("CellKind", bound=Callable[[Study, str], Any])


def cell(table: str, *heads: str) -> Callable[[CellKind], CellKind]:
    """The kind of a cell in columns of a table; a function may give the text alone, or a note with it."""

    def put(kind: CellKind) -> CellKind:
        def with_note(study: Study, label: str) -> tuple[str, str]:
            content = kind(study, label)
            return content if isinstance(content, tuple) else (str(content), "")

        CELLS.setdefault(table, {}).update(dict.fromkeys(heads, with_note))
        return kind

    return put


def listed(items: list[str]) -> str:
    """`a, b and c`."""
    return " and ".join(filter(None, (", ".join(items[:-1]), *items[-1:])))


def joined(labels: Sequence[str]) -> str:
    """`a, b`, or `a, dim=1; b, dim=2` where labels have commas."""
    return ("; " if any("," in label for label in labels) else ", ").join(labels)


def named(labels: Sequence[str]) -> str:
    """`a, b and c` as headlines have it, up to four."""
    return " and ".join(filter(None, (joined(labels[:-1]), *labels[-1:])))


def span(values: Sequence[float]) -> str:
    """`130`, or `4096 to 8192`."""
    return " to ".join(dict.fromkeys((f"{min(values)}", f"{max(values)}")))


def took(seconds: float) -> str:
    """Seconds, minutes or hours."""
    return (
        f"{seconds} s"
        if seconds < 99.95
        else f"{seconds / 60} min"
        if seconds < 7200
        else f"{seconds / 3600} h"
    )


def percent(value: Value) -> str:
    """`+1.5 % +1.2 to +1.8 %` of a ratio."""
    middle, ends = 100 * (value.middle - 1), value.ends
    prefix = "range " if value.is_range else ""
    return f"{middle:+} %" + (
        f" {prefix}{100 * (ends[0] - 1):+} to {100 * (ends[1] - 1):+} %" if ends else ""
    )


def vague(value: Value) -> bool:
    """Whether its interval is wider than itself, and says nothing."""
    return bool(value.ends and value.ends[1] - value.ends[0] > abs(value.middle))


def told(value: Value) -> Value:
    """With the range of its runs in place of an interval that says nothing, or without any."""
    return Value(value.middle, value.extremes, bool(value.extremes)) if vague(value) else value


def estimate(value: Value | None) -> str:
    """`51.0 49.0 - 52.0`."""
    if value is None:
        return NONE
    value = told(value)
    prefix = "range " if value.is_range else ""
    return f"{value.middle}{f' {prefix}{value.ends[0]} {NONE} {value.ends[1]}' if value.ends else ''}"


def noted(study: Study, label: str, value: Value | None) -> tuple[str, str]:
    """The same with its note, where it has the range of runs."""
    if not value or not vague(value) or not value.extremes:
        return estimate(value), ""
    runs = len(study.completed(label))
    note = f"no interval, but the range of all {runs} runs, as the interval is wider than the value"
    return estimate(value), note


# What was run.


@said("ran")
def trained(study: Study) -> Iterator[str]:
    if study.task == "training":
        runs = study.done or study.runs
        steps = span([run.config["train"].get("steps") or run.steps[-1][1]["step"] for run in runs])
        tokens = span(
            [run.config["train"]["batch_size"] * run.config["train"]["sequence_length"] for run in runs]
        )
        several = len({run.parameters for run in runs}) > 1
        verb = "was trained" if study.done else "was to be trained"
        verb = verb.replace("was", "were", 1) if several else verb
        yield f"{_model(runs)} {verb} for {steps} steps of {tokens} tokens{_where(runs)}{_under(study)}."


@said("ran")
def prompts_read(study: Study) -> Iterator[str]:
    if study.task == "inference":
        settings = study.runs[0].config["inference"]
        new_tokens = [n for run in study.runs if (n := run.config["inference"]["new_tokens"])]
        readers = dict.fromkeys(run.label for run in study.runs if not run.config["inference"]["new_tokens"])
        but = f" (not {listed(list(readers))})" if readers else ""
        batches = f"batches of {settings['batch_size']} " if settings["batch_size"] > 1 else ""
        yield (
            f"{_model(study.runs)} read {settings['steps']} {batches}prompts of "
            f"{settings['prompt_length']} tokens and decoded {span(new_tokens)} tokens after the last{but}"
            f"{_where(study.runs)}{_under(study)}."
        )


@said("ran")
def attention_timed(study: Study) -> Iterator[str]:
    if study.task == "attention":
        all_cases = [calls.case_of(run) for run in study.runs]
        shapes = {run.sizes for run in study.runs}
        timed = {run.sizes for run in study.runs if run.kernels}
        parts = {"mask": "causal", "precision": "dtype", "dropout": "dropout", "tile": "tile"}
        varied = [
            part for part, name in parts.items() if len({getattr(case, name) for case in all_cases}) > 1
        ]
        cases = f", {len(set(all_cases))} cases of {listed(['shape', *varied])}" if varied else ""
        count = f"{len(timed)} of {len(shapes)}" if len(timed) < len(shapes) else f"{len(shapes)}"
        has_8_bits = any(calls.case_of(run).dtype == calls.FP8 for run in study.runs)
        directions = "forward and backward" + (" (of 8 bits forward alone)" if has_8_bits else "")
        yield (
            f"Attention alone was timed{_where(study.runs)} at {count} shape{'s' * (len(shapes) > 1)}{cases}, {directions}, in "
            f"{study.runs[0].config['call']['steps']} rounds of all backends."
        )


def _model(runs: list[Run]) -> str:
    sizes = sorted({run.parameters for run in runs})
    if len(sizes) > 1:
        return f"Llamas of {sizes[0] / 1e6} million to {sizes[-1] / 1e6} million parameters"
    return f"A llama of {sizes[0] / 1e6} million parameters"


def _where(runs: list[Run]) -> str:
    started = [run for run in runs if run.attempts and run.measured.manifest]
    names, counts = devices(started), sorted({run.gpus for run in started})
    if len({run.device for run in started}) == 1 and len(counts) > 1 and counts[0]:
        return f" on {listed([str(count) for count in counts])} GPUs ({started[0].device})"
    return f" on {' or '.join(names)}" if names else ""


def devices(runs: list[Run]) -> list[str]:
    """`2 x NVIDIA H100`, `NVIDIA H200 (2 of them, one a run)`."""
    cards: dict[str, set[str]] = {}
    for run in runs:
        name = f"{run.gpus} x {run.device}" if run.gpus > 1 else run.device
        cards.setdefault(name, set()).update(
            {str(run.measured.manifest.get("gpu_uuid"))} if run.gpus == 1 else ()
        )
    return sorted(
        f"{name} ({len(uuids)} of them, one a run)" if len(uuids) > 1 else name
        for name, uuids in cards.items()
    )


def _under(study: Study) -> str:
    groups = list(study.groups)
    counts = [len(study.completed(label)) for label in groups if study.completed(label)]
    run_count = f"{span(counts)} runs" if counts and counts != [1] * len(counts) else "one run"
    if counts and any(run.outcome is None for run in study.runs):
        run_count = f"{span(counts)} of {span([len(runs) for runs in study.groups.values()])} planned runs"
    run_count = f", {run_count} each" if counts else ""
    if len(groups) == 1:
        return ", in one run" if counts else ""
    group_count = f"{len(counts)} of {len(groups)}" if 0 < len(counts) < len(groups) else f"{len(groups)}"
    varied = {
        name: {run.plan["factors"].get(name) for run in study.runs} for name in study.runs[0].plan["factors"]
    }
    axes = [name for name in sorted(varied) if len(varied[name]) > 1 and name not in ("seed", "repeat")]
    if axes not in ([], ["attention"]):
        return f" in {group_count} configurations of {listed(axes)}{run_count}"
    if len(groups) <= 3 and len(counts) in (0, len(groups)):
        return f" under {listed(groups)}{run_count}"
    return f" under {group_count} attention backends{run_count}"


# The answer.


@said("answer")
def scaled(study: Study) -> Iterator[str]:
    if study.name == "scaling":
        _, label = study.groups
        share, times = 100 * efficiency(study, label).middle, speedup(study, label)
        assert times.ends
        comparison = f"{times.middle} ({times.ends[0]} to {times.ends[1]}) times as fast"
        yield f"Weak scaling from 1 to 2 GPUs: {label} {comparison}, {share} % of ideal."


@said("answer")
def fastest_and_slowest(study: Study) -> Iterator[str]:
    if study.task == "attention" or study.name == "scaling" or not study.measured or is_grid(study):
        return
    unit = "prompt tokens/s" if study.task == "inference" else "tokens/s"
    correct_labels = [label for label in study.measured if label not in study.wrong]
    rates = {
        label: study.over(label, lambda run, seconds: run.tokens / seconds).middle for label in correct_labels
    }
    ends = (max(correct_labels, key=rates.__getitem__), min(correct_labels, key=rates.__getitem__))
    for text in _ends(study, rates, unit, ("highest rate", "lowest"), True, ""):
        first, *parts = text.split(unit)
        latencies = [f", {prefill_of(study, label).middle} ms a prefill" for label in ends]
        inferred = study.task == "inference"
        yield first + "".join(
            f"{unit}{latency * inferred}{part}" for latency, part in zip(latencies, parts, strict=False)
        )


@said("answer")
def shown_of_groups(study: Study) -> Iterator[str]:
    if study.task == "attention" or study.name == "scaling" or is_grid(study):
        return
    if study.steps:
        yield f"One setting at a time: {'; '.join(one_at_a_time(study))}."
        return
    words: dict[str, list[str]] = {"faster": [], "equivalent": [], "slower": [], "inconclusive": []}
    compared = [label for label in study.measured if study.against(label) and label not in study.wrong]
    for label in compared:
        words.setdefault(verdict(study, label)[0], []).append(label)
    if len(compared) > 2 and any(words[word] for word in ("faster", "equivalent", "slower")):
        parts = [
            f"{listed(labels) if len(labels) < 4 else len(labels)} {'is' if len(labels) == 1 else 'are'} {word}"
            for word, labels in words.items()
            if labels and word in ("faster", "equivalent", "slower", "inconclusive")
        ]
        if once := words.get("observed"):
            have = "has a single run" if len(once) == 1 else "have single runs"
            parts.append(f"{listed(once) if len(once) < 4 else len(once)} {have}")
        yield f"Against {study.against(compared[0])}, {listed(parts)}."


def one_at_a_time(study: Study) -> list[str]:
    """By setting what it changes at least and at most, with how many verdicts of each kind, in the order of the most."""
    changes: dict[str, list[tuple[float, str]]] = {}
    for (setting, other), one in study.steps.items():
        change = 100 * (study.rate_ratio(one, other).middle - 1)
        changes.setdefault(setting, []).append((change, step_verdict(study, one, other)))
    texts = []
    for setting, pairs in sorted(changes.items(), key=lambda item: -max(item[1])[0]):
        ends = f"{min(pairs)[0]:+} to {max(pairs)[0]:+}" if len(pairs) > 1 else f"{pairs[0][0]:+}"
        counts = Counter(word for _, word in pairs)
        words = ", ".join(word if len(counts) == 1 else f"{many} {word}" for word, many in counts.items())
        texts.append(f"{setting} {ends} % ({words})")
    return texts


def step_verdict(study: Study, label: str, base: str) -> str:
    """That of two groups of several runs, within or beyond a margin."""
    ratio, margin = study.rate_ratio(label, base), study.design["margins"]["tokens_per_second"]
    assert ratio.ends
    low, high = ratio.ends[0] - 1, ratio.ends[1] - 1
    if low > margin or high < -margin:
        return "faster" if ratio.middle > 1 else "slower"
    return "equivalent" if -margin < low and high < margin else "inconclusive"


def axes(study: Study, labels: Sequence[str] = ()) -> list[str]:
    """The numeric factors with three values or more in some groups: most values first."""
    values: dict[str, set[Any]] = {}
    for label in labels or study.groups:
        for name, value in study.groups[label][0].plan["factors"].items():
            values.setdefault(name, set()).add(value)
    numeric = [
        name
        for name, levels in values.items()
        if len(levels) > 2
        and name not in ("seed", "repeat")
        and all(isinstance(level, (int, float)) for level in levels)
    ]
    return sorted(numeric, key=lambda name: (-len(values[name]), name))


def is_grid(study: Study) -> bool:
    """Whether groups are compared with several baselines."""
    return len({study.against(label) for label in study.measured} - {None}) > 1


def pairs_of(study: Study, label: str) -> list[tuple[Run, Run]]:
    """Its completed runs, each with the baseline's of the same seed and repeat."""
    baseline = study.against(label)
    base = {run.key: run for run in study.completed(baseline)} if baseline else {}
    return [(run, base[run.key]) for run in study.completed(label) if run.key in base]


def time_saved(study: Study, label: str) -> Value | None:
    """Percent of the baseline's seconds per token: 100 (1 - 1 / r), r the ratio of the rates at 95 %."""
    if not pairs_of(study, label):
        return None
    ratio = study.rate_ratio(label)
    ends = ratio.ends and (100 * (1 - 1 / ratio.ends[0]), 100 * (1 - 1 / ratio.ends[1]))
    return Value(100 * (1 - 1 / ratio.middle), ends, ratio.is_range)


def memory_saved(study: Study, label: str) -> Value | None:
    """Percent of the baseline's peak: the median over pairs of runs."""
    pairs = pairs_of(study, label)
    shares = [100 * (1 - own.peak_gib / base.peak_gib) for own, base in pairs]
    return Value(arithmetic_median(shares)) if pairs else None


SAVED = {"time": time_saved, "memory": memory_saved}


@said("answer")
def saved(study: Study) -> Iterator[str]:
    for quantity, saving in SAVED.items() if is_grid(study) else ():
        values = {label: value.middle for label in study.measured if (value := saving(study, label))}
        verdicts = {label: verdict(study, label)[0] for label in values if study.against(label)}
        undecided = [
            label for label, word in verdicts.items() if word == "inconclusive" and quantity == "time"
        ]
        undecided = undecided if len(undecided) < len(verdicts) else []
        values = {label: value for label, value in values.items() if label not in undecided}
        ends = [end(values, key=lambda label: values[label]) for end in (min, max)]
        singles = [len(pairs_of(study, label)) == 1 for label in ends]
        texts = [
            f"{values[label]} % ({label})" + ", in one run" * (single and not all(singles))
            for label, single in zip(ends, singles, strict=True)
        ]
        suffix = ", in one run each" if all(singles) else ""
        remainder = f"; {len(undecided)} undecided" if undecided else ""
        yield f"{quantity.capitalize()} saved against the baseline: {' to '.join(texts)}{suffix}{remainder}."


@said("answer")
def decoded_fastest(study: Study) -> Iterator[str]:
    if study.task == "inference":
        times = {label: value for label in study.measured if (value := over_decoded(study, label))}
        middles = {label: value.middle for label, value in times.items()}
        yield from _ends(study, middles, "ms a token", ("shortest time", "longest"), False, "Decoding: ")


def _ends(
    study: Study, values: dict[str, float], unit: str, words: tuple[str, str], descending: bool, prefix: str
) -> Iterator[str]:
    order = values
    if not prefix and lacking(study):
        prefix = "Within blocks, "
        order = {label: study.rate_ratio(label).middle if study.against(label) else 1.0 for label in values}
    ordered = sorted(order, key=lambda label: order[label], reverse=descending)
    texts = {label: f"{value} {unit}" for label, value in values.items()}
    first, last = ordered[0], ordered[-1]
    if len(values) == 1:
        yield f"{prefix}{first}: {texts[first]}."
        return
    if values[first] == values[last]:
        yield f"All {len(values)} groups: {texts[first]}."
        return
    if descending:
        for label in (first, last):
            if study.against(label) and verdict(study, label)[0] != "withheld":
                change = 100 * (study.rate_ratio(label).middle - 1)
                opposite = (values[label] - values.get(study.against(label), values[label])) * change < 0
                change_text = "" if opposite else f"{change:+} % "
                texts[label] += f" ({change_text}against {study.against(label)}: {verdict(study, label)[0]})"
    elif unit == "ms a token":
        for label in (first, last):
            if (base := study.against(label)) in values:
                tested = verdict(study, label)[0] != "withheld" and {label, base} in study.holm_of_decoding
                untested = "" if tested else ", not tested"
                texts[label] += f", {100 * (values[label] / values[base] - 1):+} % against {base}{untested}"
    p_values = study.holm if descending else study.holm_of_decoding
    compared = {study.against(first), *([last] if study.against(last) == first else [])}
    ties = [
        label
        for label in ordered
        if p_values.get(frozenset((first, label)), 0.0) > 0.05 and (not descending or label not in compared)
    ]
    doubt = (
        f"tests do not tell it from {listed(ties) if len(ties) <= 3 else f'{len(ties)} others'}; "
        if ties
        else ""
    )
    singles = [len(study.completed(label)) == 1 for label in (first, last)]
    if all(singles):
        prefix += "in one run each, " if prefix else "In one run each, "
    elif any(singles):
        texts[[first, last][singles.index(True)]] += ", in one run"
    yield f"{prefix}{first} has the {words[0]}, {texts[first]}; {doubt}{last} the {words[1]}, {texts[last]}."


@said("answer")
def final_losses(study: Study) -> Iterator[str]:
    sizes = {
        (run.config["train"]["batch_size"], run.config["train"]["sequence_length"])
        for run in study.done
        if study.task == "training"
    }
    if not sizes:
        return
    losses = {label: final_loss(study, label).middle for label in study.measured if label not in study.wrong}
    low, high = min(losses, key=lambda label: losses[label]), max(losses, key=lambda label: losses[label])
    verdicts = {label: loss_verdict(study, label) for label in losses if study.against(label) in losses}
    differ = [label for label, (kind, _) in verdicts.items() if kind == "different"]
    equal = [label for label, (kind, _) in verdicts.items() if kind == "equivalent"]
    clause, verbs = "", ("are", "is")
    if verdicts and len(equal) == len(verdicts):
        clause = ", equivalent within the margin"
    elif verdicts and not equal and not differ:
        clause = "; whether they agree is not decided"
    elif verdicts:
        parts = [f"{listed(differ)} differ{'s' if len(differ) == 1 else ''}"] if differ else []
        if equal:
            word = verbs[len(equal) == 1]
            parts.append(f"{len(equal)} of {len(verdicts)} {word} equivalent within the margin")
        if undecided := len(verdicts) - len(differ) - len(equal):
            parts.append(f"{undecided} {verbs[undecided == 1]} not decided")
        clause = f"; against the baseline, {listed(parts)}"
    if len(sizes) > 1:
        clause = f", after different amounts of text{clause}"
    differences = {label: study.loss_difference(label) for label in verdicts}
    if len(equal) < len(verdicts) and any(round(value.middle, 4) for value in differences.values()):
        most = max(differences, key=lambda label: abs(differences[label].middle))
        ends, margin = differences[most].ends, study.design["margins"].get("loss")
        clause += (
            f"; over the last fifth of their common steps, the {'largest ' * (len(differences) > 1)}difference is that of "
            f"{most} from {study.against(most)}: {differences[most].middle:+} nats per token "
            f"({f'90 %: {ends[0]:+} to {ends[1]:+}' if ends else 'no interval'}; "
            f"{'no margin' if margin is None else f'margin {margin}'})"
        )
    if f"{losses[low]:.4f}" == f"{losses[high]:.4f}":
        yield f"Final loss: {losses[low]}{f' for all {len(losses)} groups' if len(losses) > 1 else ''}{clause}."
    else:
        extremes = []
        for end in (low, high):
            alike = [label for label in losses if f"{losses[label]:.4f}" == f"{losses[end]:.4f}"]
            extremes.append(f"{losses[end]} ({listed(alike) if len(alike) <= 3 else f'{len(alike)} groups'})")
        yield f"Final losses: {' to '.join(extremes)}{clause}."


@said("answer")
def in_8_bits(study: Study) -> Iterator[str]:
    by_backend: dict[str, list[tuple[str, calls.Case, calls.Case]]] = {}
    for key in series.gains(study) if study.task == "attention" else ():
        by_backend.setdefault(key[0], []).append(key)
    ratios = {name: [series.gain(study, *key) for key in keys] for name, keys in by_backend.items()}
    texts = []
    for name, values in sorted(ratios.items(), key=lambda item: -max(value.middle for value in item[1])):
        middles = [value.middle for value in values]
        times = " to ".join(dict.fromkeys((f"{min(middles):.9f}", f"{max(middles):.9f}")))
        ends = values[0].ends if len(values) == 1 else None
        interval = f" ({ends[0]} to {ends[1]})" if ends else ""
        places = f" at {len(values)} shapes" if len(values) > 1 else ""
        texts.append(f"{times} times{interval} as fast as in bfloat16 with {name}{places}")
    if texts:
        yield f"In 8 bits a forward is {listed(texts)}."
    for name, keys in by_backend.items():
        errors = series.errors(study, *keys[0][:2])
        yield (
            f"The output of {name} in 8 bits is {errors['error with the rounding of Q, K and V, %']} % off float64, by its "
            f"certificate, and in bfloat16 {errors['error of bfloat16, %']} %; {errors['error of the kernel, %']} % is the kernel's "
            "own error, on the numbers as they were rounded."
        )


def _apart(numerator: Value, denominator: Value) -> str:
    """The ratio of two medians, with its interval."""
    ratio = numerator.over(denominator)
    assert ratio.ends
    low, high = ratio.ends
    unclear = ": not told apart" if low <= 1 <= high else ""
    return f"{ratio.middle} times ({low} to {high}{unclear})"


@said("answer")
def by_tile(study: Study) -> Iterator[str]:
    cases_by_text = series.series(study, "kernel_tile") if study.task == "attention" else {}
    if not cases_by_text:
        return

    def times_by_backend(fixed: str) -> dict[str, list[tuple[Value, calls.Case]]]:
        times: dict[str, list[tuple[Value, calls.Case]]] = {}
        for case in cases_by_text[fixed]:
            for name in calls.backends(study):
                if value := calls.time(study, case, name, "both"):
                    times.setdefault(name, []).append((value, case))
        return {name: sorted(values, key=lambda timed: timed[0].middle) for name, values in times.items()}

    fixed = max(cases_by_text, key=lambda candidate: sum(map(len, times_by_backend(candidate).values())))
    texts = [
        f"{name} has its shortest time, {values[0][0].middle} ms, in {series.in_words(values[0][1])}, "
        f"{_apart(values[-1][0], values[0][0])} as fast as in {series.in_words(values[-1][1])}, the slowest of {len(values)}"
        for name, values in sorted(times_by_backend(fixed).items(), key=lambda item: item[1][0][0].middle)
    ]
    yield f"A forward and its backward over tiles of queries x keys, at {fixed}, in CUDA graphs: {'; '.join(texts)}."


@said("answer")
def by_dropout(study: Study) -> Iterator[str]:
    all_cases = calls.cases(study) if study.task == "attention" else []
    costs: dict[calls.Case, dict[str, tuple[Value, Value]]] = {}
    for case in all_cases:
        for name in calls.timed(study, case) if case.dropout else ():
            plain_time = calls.time(study, case._replace(dropout=0.0), name, "both")
            if plain_time and (dropout_time := calls.time(study, case, name, "both")):
                costs.setdefault(case, {})[name] = dropout_time, plain_time
    if costs:
        case = max(
            costs,
            key=lambda candidate: (
                len(costs[candidate]),
                -min(dropout_time.middle for dropout_time, _ in costs[candidate].values()),
            ),
        )
        texts = [f"{_apart(*costs[case][name])} that without with {name}" for name in costs[case]]
        yield f"At {case.said}, in CUDA graphs, the time of a forward and its backward is {'; '.join(texts)}."


@said("answer")
def at_one_case(study: Study) -> Iterator[str]:
    if study.task != "attention":
        return
    case = calls.main(study)
    times = {
        name: value.middle
        for name in calls.at_main(study)
        if (value := calls.time(study, case, name, case.whole))
    }
    best = calls.fastest(study, case)
    ordered = sorted(times, key=lambda name: (not best or name != best[0], times[name]))
    call, verb = ("a forward", "takes") if case.whole == "forward" else ("a forward and its backward", "take")
    texts = [f"{times[name]} ms with {name}" for name in (ordered[0], ordered[-1])]
    slowest = f", the slowest of {len(ordered)} backends" if len(ordered) > 2 else ""
    times_text = f"{call} {verb} {texts[0]} and {texts[1]}{slowest}"
    setting = f"At {case.said}, in CUDA graphs"
    if not best:
        yield f"{setting}, {times_text}."
    elif best[1].doubt:
        other, value = best[1].doubt
        yield f"{setting}, {times_text}; {best[0]} is not told from {other}: {_gain(value)}."
    else:
        yield f"{setting}, {best[0]} is the fastest, by {_gain(best[1].ratio)} over {best[1].over}: {times_text}."


@said("answer")
def otherwise(study: Study) -> Iterator[str]:
    """Another backend that is clearly the fastest at the sizes of the main case, with another precision or mask."""
    if study.task != "attention":
        return
    main = calls.main(study)
    best = calls.fastest(study, main)
    texts = []
    for case in calls.cases(study):
        is_comparable = (
            case._replace(dtype=main.dtype, causal=main.causal) == main and case.whole == main.whole
        )
        other = calls.fastest(study, case) if case != main and is_comparable else None
        if other and other[1].clear and not (best and best[1].clear and best[0] == other[0]):
            mask = f" {'with' if case.causal else 'without'} a mask" if case.causal != main.causal else ""
            difference = f"{f' in {case.dtype}' if case.dtype != main.dtype else ''}{mask}"
            texts.append(
                f"{other[0]} is the fastest{difference}, by {_gain(other[1].ratio)} over {other[1].over}"
            )
    if texts:
        yield f"At the same sizes, {'; '.join(texts)}."


@said("answer")
def at_each_case(study: Study) -> Iterator[str]:
    all_cases = calls.cases(study) if study.task == "attention" else []
    leads = [best for case in all_cases if (best := calls.fastest(study, case))]
    if len(leads) < 2:
        return
    compared = [case for case in all_cases if calls.fastest(study, case)]
    precisions = sorted({case.dtype for case in compared})
    won: dict[str, list[tuple[float, str]]] = {}
    for case, (name, lead) in zip(compared, leads, strict=True):
        if lead.clear:
            won.setdefault(name, []).append((100 * (lead.ratio.middle - 1), case.dtype))
    texts = []
    for name, wins in sorted(won.items(), key=lambda item: -len(item[1])):
        gains = [gain for gain, _ in wins]
        counts = {dtype: sum(won_dtype == dtype for _, won_dtype in wins) for dtype in precisions}
        breakdown = (
            "".join(f"{count} in {dtype}, " for dtype, count in counts.items() if count)
            if precisions[1:]
            else ""
        )
        interval = " to ".join(dict.fromkeys((f"{min(gains):+.9f}", f"{max(gains):+.9f}")))
        texts.append(f"{name} at {len(gains)} ({breakdown}{interval} % over the next)")
    has_variants = len({(case.batch, case.length, case.heads, case.dim) for case in compared}) < len(compared)
    unclear = len(leads) - sum(map(len, won.values()))
    remainder = f"; at {unclear}, none is told from the next" if unclear else ""
    yield f"Over {len(leads)} {'cases' if has_variants else 'shapes'}, the fastest is {listed(texts)}{remainder}."


def _gain(ratio: Value) -> str:
    middle, ends = 100 * (ratio.middle - 1), ratio.ends
    assert ends
    return f"{middle:+} % ({100 * (ends[0] - 1):+} to {100 * (ends[1] - 1):+} %)"


@said("answer")
def call_out_of_memory(study: Study) -> Iterator[str]:
    rows = {
        (row["attention"], run.id) for run in study.runs for row in run.kernels if row["outcome"] == "oom_gpu"
    }
    for name in sorted({name for name, _ in rows}):
        yield f"{name} ran out of memory in {len([1 for backend, _ in rows if backend == name])} run and was not timed there."


@said("answer")
def no_result(study: Study) -> Iterator[str]:
    meanings = {"oom_gpu": "out of GPU memory", "failed": "failed"}
    outcomes: dict[str, list[str]] = {}
    for label, runs in study.groups.items():
        if not any(run.done or run.outcome is None for run in runs):
            outcomes.setdefault(meanings[str(runs[0].outcome)], []).append(label)
    if outcomes:
        yield f"No result: {listed([f'{listed(labels)} ({outcome})' for outcome, labels in outcomes.items()])}."


@said("answer")
def wrong_in_log(study: Study) -> Iterator[str]:
    if study.wrong:
        yield f"Left out of this answer, flagged in its log: {listed([f'{label} (loss)' for label in study.wrong])}."


@said("answer")
def no_answer(study: Study) -> Iterator[str]:
    if not any(run.outcome for run in study.runs):
        yield "No answer yet: no run has completed."


# What nobody planned.


@said("warning")
def wrong_certificate(study: Study) -> Iterator[str]:
    for run in study.done:
        certificate = study.certificate(run)
        checks = certificate.get("checks", [])
        if failed := sum(not check["passed"] for check in checks):
            dtype = f" in {certificate['case']['dtype']}" if certificate["case"] else ""
            yield (
                f"{run.label} computes attention{dtype} wrongly on {run.device}: {failed} of {len(checks)} checks of "
                "its certificate failed."
            )


@said("warning")
def without_a_run(study: Study) -> Iterator[str]:
    requested = {
        name
        for run in study.runs
        for name in run.plan.get("provenance", {"command": [""]})["command"][-1].partition("=")[2].split(",")
    }
    for name in requested - {"", *study.groups}:
        yield f"A launch asked for {name} (attention), but there is no record of such a run."


@said("limit")
def no_plan(study: Study) -> Iterator[str]:
    if study.imported and (logs := [run for run in study.done if "steps" not in run.config["train"]]):
        yield (
            f"Whether {len(logs)} run completed is unknown: its log ends at step {logs[0].steps[-1][1]['step']}, and "
            "nothing says how many steps were planned."
        )


@said("warning")
def wrong_log(study: Study) -> Iterator[str]:
    for label in study.wrong:
        others = [other for other in study.groups if other != label]
        traces = {
            name: [record["loss"] for record in study.groups[name][0].attempts[0].steps]
            for name in study.groups
        }
        last = range(80, 100)
        difference = fmean(
            traces[label][step] - arithmetic_median(traces[name][step] for name in others) for step in last
        )
        yield (
            f"Flagged by the check loss of imported logs: {label}: its loss against the median of {len(others)} others "
            f"differs by {difference:+} nats, as no other's does."
        )


@said("warning")
def not_expected(study: Study) -> Iterator[str]:
    ends: dict[tuple[str, str], list[str]] = {}
    for run in study.runs:
        if run.outcome not in (None, run.expected):
            ends.setdefault((str(run.outcome), run.measured.result["reason"]), []).append(run.label)
    for (outcome, reason), labels in ends.items():
        count = "1 run" if len(labels) == 1 else f"{len(labels)} runs"
        names, meaning = (
            listed(list(dict.fromkeys(labels))),
            {"failed": "an error"}.get(outcome, "out of GPU memory"),
        )
        yield f"{names} ended as {outcome} ({meaning}) in {count}, where the study expected completed: {reason}."


@said("warning")
def without_times(study: Study) -> Iterator[str]:
    if study.task == "attention" and (runs_without_times := [run for run in study.done if not run.kernels]):
        yield f"{len(runs_without_times)} completed run has no times: its kernels.json is missing or holds none."


@said("warning")
def backend_failed(study: Study) -> Iterator[str]:
    ends = Counter(
        (row["attention"], run.id) for run in study.runs for row in run.kernels if row["outcome"] == "failed"
    )
    for name in dict.fromkeys(name for name, _ in ends):
        yield f"{name} was not timed in {len([1 for other, _ in ends if other == name])} run: it ended as failed."


@said("warning")
def busy(study: Study) -> Iterator[str]:
    if busy_runs := sum((run.measured.manifest.get("device_users") or 0) > 0 for run in study.done):
        yield (
            f"When {busy_runs} of {len(study.done)} completed runs started, the machine was busy with something else (a load "
            "above 0.5 per core, beyond that of the study's own runs before, or other processes on the device): "
            "their times may be too long."
        )


@said("warning")
def drifted(study: Study) -> Iterator[str]:
    if study.design.get("order") == "interleaved":
        change, low, high, p_value, blocks = drift(study)
        if p_value <= 0.05:
            yield (
                f"The machine drifted: steps became {100 * change} % {'slower' if change > 0 else 'faster'} from the "
                f"first block to the last ({blocks}); {100 * low:+} to {100 * high:+} %, p = {p_value}."
            )


@said("warning")
def held_up(study: Study) -> Iterator[str]:
    several = (
        [run for run in study.done if "slowest_rank" in run.steps[-1][1]] if study.task == "training" else []
    )
    for run in several:
        counts = Counter(record["slowest_rank"] for record in run.counted)
        rank, occurrences = counts.most_common(1)[0]
        excess = 100 * (
            plain_median(
                interval["slowest_rank_seconds"] / interval["other_ranks_seconds"] for interval in run.counted
            )
            - 1
        )
        yield (
            f"One process held up the others in {len(several)} of {len(several)} completed runs of several processes: "
            f"in {run.label}, rank {rank} on nid001 was slowest in {occurrences} of {len(run.counted)} intervals, by "
            f"{excess} % of the median of the others."
        )


@said("warning")
def moved(study: Study) -> Iterator[str]:
    if labels := [run.label for run in study.done if run.attempts[-1].manifest.get("parallel")]:
        yield (
            f"{len(labels)} of {len(study.done)} completed runs ended on other numbers of processes than the study "
            f"gives, in {listed(labels)}: speed and memory are those of the attempts before."
        )


# What cannot be said.


@said("limit")
def left_out(study: Study) -> Iterator[str]:
    if study.design.get("baseline"):
        for label in study.measured:
            missing_runs = [run for run in study.groups[label] if not run.done]
            if missing_runs:
                yield (
                    f"The verdicts on tokens per second and loss leave out {len(missing_runs)} of "
                    f"{len(study.groups[label])} runs of {label} "
                    f"({len(missing_runs)} {missing_runs[0].outcome or 'without an outcome yet'})."
                )


def lacking(study: Study) -> dict[str, list[int]]:
    """The blocks that a group lacks, where two blocks have no GPU in common."""
    gpus: dict[int, set[str]] = {}
    for run in study.done:
        if block := run.plan.get("block"):
            gpus.setdefault(block, set()).add(run.measured.manifest.get("gpu_uuid"))
    if all(first & second for first, second in combinations(gpus.values(), 2)):
        return {}
    blocks_by_label = {
        label: {run.plan["block"] for run in study.completed(label)} for label in study.measured
    }
    return {
        label: sorted(gpus.keys() - blocks)
        for label, blocks in blocks_by_label.items()
        if gpus.keys() - blocks
    }


@said("limit")
def other_gpus(study: Study) -> Iterator[str]:
    for label, blocks in lacking(study).items():
        yield (
            f"Medians are over different GPUs, as {label} lacks block {blocks[0]}; ratios of paired runs stay within "
            "blocks."
        )


@said("limit")
def single_runs(study: Study) -> Iterator[str]:
    singles = [label for label in study.measured if len(study.completed(label)) == 1]
    differences, those = ("differences in speed of single runs", "them")
    if len(singles) == 1:
        differences, those = "difference in speed of a single run", "it"
    if singles and study.task != "attention":
        names = f"one of each of {len(singles)} groups" if len(singles) > 4 else listed(singles)
        if len({run.key for run in study.runs}) > 1:
            advice = f"To test {those}, launch the study's other repeats too."
        else:
            advice = f"To test {those}, write repeats: 6 in the study."
        if study.imported:
            advice = f"To test {those}, import 6 logs of each."
        if len(study.measured) == 1:
            advice = (
                "To know it, import 6 logs."
                if study.imported
                else "To know it, write repeats: 6 in the study."
            )
            yield f"What another start would give is unknown: one run ({names}) completed. {advice}"
            return
        yield f"How much of the {differences} ({names}) is the machine's own, between two starts, is unknown. {advice}"


@said("limit")
def no_baseline(study: Study) -> Iterator[str]:
    if study.imported and len(study.groups) > 1:
        yield (
            "Groups are not compared with a baseline: the import named none. Import again with --baseline FACTOR=VALUE."
        )
    elif (
        study.task not in ("attention", "frontier")
        and not study.imported
        and not study.design.get("baseline")
        and len(study.groups) > 1
        and study.name != "scaling"
    ):
        axis, value = next(iter(study.runs[0].plan["factors"].items()))
        yield (
            "Groups are not compared with a baseline: the study declares none. "
            f"Write it in the study, for example baseline: {{{axis}: {value}}}."
        )


@said("limit")
def unranked(study: Study) -> Iterator[str]:
    if len({run.gpus for run in study.done}) > 1 and study.task == "training":
        yield "Groups of different numbers of processes are not ranked together: their machines differ in size."
    for label in study.measured:
        if one_after_the_other(study, label):
            yield withheld(study, label)


@said("limit")
def against_ranking(study: Study) -> Iterator[str]:
    """Verdicts on a margin are of one test; only the ranking is corrected for the number of its pairs."""
    if study.design.get("baseline"):
        undecided = [
            label
            for label in study.measured
            if verdict(study, label)[0] in ("faster", "slower")
            and study.holm[frozenset((label, study.against(label) or ""))] > 0.05
        ]
        if undecided:
            yield (
                f"Each verdict is tested alone: corrected for all {len(study.holm)} pairs, the ranking does not tell "
                f"{study.against(undecided[0])} from {listed(undecided)}."
            )
    p_values = [
        study.holm[frozenset((one, other))]
        for (_, other), one in study.steps.items()
        if step_verdict(study, one, other) in ("faster", "slower")
    ]
    if max(p_values, default=0.0) > 0.05:
        confirmed = sum(p <= 0.05 for p in p_values) or "none"
        yield (
            f"Of {len(p_values)} verdicts on single settings that say faster or slower, "
            f"the ranking confirms {confirmed}."
        )


@said("limit")
def installed_for_some(study: Study) -> Iterator[str]:
    recorded = [
        run.measured.manifest["software"] for run in study.done if run.measured.manifest.get("software")
    ]
    counts = Counter(name for software in recorded for name in software)
    partly = [
        f"{name} ({count} of {len(recorded)})" for name, count in counts.items() if count < len(recorded)
    ]
    if partly:
        yield f"Only some of the completed runs had these packages: {', '.join(partly)}."


@said("limit")
def baseline_failed(study: Study) -> Iterator[str]:
    if is_grid(study):
        labels = [
            label for label in study.measured if (base := study.against(label)) and base not in study.measured
        ]
        yield f"Not compared, because the baseline has no completed counterpart: {listed(labels)}."
    if study.baseline and study.baseline not in study.measured and study.measured:
        yield (
            f"Not compared, because the baseline, attention: {study.baseline}, has no completed run in this study: "
            f"{listed(study.measured)}."
        )


@said("limit")
def gpus_not_tested(study: Study) -> Iterator[str]:
    uuids = {run.measured.manifest.get("gpu_uuid") for run in study.done} - {None}
    gpus_by_label = {
        label: {run.measured.manifest.get("gpu_uuid") for run in study.completed(label)}
        for label in study.measured
    }
    if lacking(study):
        yield (
            f"Whether the {len(uuids)} GPUs differ in speed was not tested: too few groups ran several times and on several "
            "GPUs. Paired runs were on the same GPU, so its speed cancels in their ratios."
        )
    elif (
        study.task == "training" and len(uuids) > 1 and all(len(gpus) == 1 for gpus in gpus_by_label.values())
    ):
        few = [label for label, gpus in gpus_by_label.items() if 2 * len(gpus) <= len(uuids)]
        yield (
            f"Whether the {len(uuids)} GPUs differ in speed was not tested: too few groups ran several times and on several "
            f"GPUs. {', '.join(few)} ran on half of the GPUs or fewer: what sets them apart may be the GPUs."
        )


@said("limit")
def held_back(study: Study) -> Iterator[str]:
    reasons = [{record.get("throttle_reasons") for record in run.counted} for run in study.done]
    if held := [kinds for run in reasons if (kinds := run - {None, "none", ""})]:
        yield (
            f"{joined(sorted(set.union(*held)))} held back the GPU's clock while steps of {len(held)} of {len(study.done)} "
            "completed runs were counted."
        )


@said("limit")
def not_decoded(study: Study) -> Iterator[str]:
    if study.task == "inference" and (
        labels := [label for label in study.measured if not over_decoded(study, label)]
    ):
        reads = "it only reads" if len(labels) == 1 else "they only read"
        yield f"How long {listed(labels)} would take to decode: in this study {reads} prompts."


@said("limit")
def imported(study: Study) -> Iterator[str]:
    if study.imported:
        yield f"{len(study.done)} of {len(study.runs)} runs were imported: they have no certificate."
        yield "Drift was not tested: in which order the runs were started is unknown."


@said("limit")
def no_certificate(study: Study) -> Iterator[str]:
    if not study.imported and study.task not in ("attention", "frontier") and study.done:
        names = sorted({run.config["attention"] for run in study.done})
        yield f"Completed runs of these backends have no valid certificate: {', '.join(names)}."


@said("limit")
def not_in_blocks(study: Study) -> Iterator[str]:
    timed = study.task not in ("attention", "frontier")
    if timed and study.done and study.design.get("order") == "as written":
        yield "Drift was not tested: the runs were not started in blocks (order: interleaved)."


@said("limit")
def one_seed(study: Study) -> Iterator[str]:
    seeds = {run.key[0] for run in study.done}
    if study.task == "training" and len(seeds) == 1 and not study.imported:
        yield (
            f"Every completed run has seed {seeds.pop()}: the effect of other initial weights and of another order of "
            "the documents is unknown."
        )


@said("limit")
def machines(study: Study) -> Iterator[str]:
    places = [
        (
            run.measured.manifest["host"],
            re.sub(r", \d+ threads$", "", run.measured.manifest["device_name"] or ""),
        )
        for run in study.done
    ]
    if len(set(places)) > 1:
        shares = [
            f"{(count := places.count(machine))} run{'s' * (count > 1)} on {machine[0]} ({machine[1]})"
            for machine in sorted(set(places))
        ]
        yield f"The completed runs were on {len(shares)} machines: {', '.join(shares[:-1])} and {shares[-1]}."
    elif places and places[0][0] is not None and study.task != "frontier":
        yield f"Every completed run was on a machine named {places[0][0]}: others of its kind may differ."


@said("limit")
def impossible_profile(study: Study) -> Iterator[str]:
    for run in study.done:
        if parts := run.profile:
            measured, minimum = 1e3 * parts["attention"], 1e3 * run.floor("step", "attention")
            if measured < 0.9 * minimum:
                yield (
                    f"The figure of where the time of a step goes is wrong for {run.label} ({measured} ms of at least "
                    f"{minimum} ms): attention would take less than it can, so the profile counts some of its kernels "
                    "as other parts."
                )


@said("limit")
def unlike_profile(study: Study) -> Iterator[str]:
    for run in study.done:
        excess = 100 * (sum(run.profile.values()) / run.seconds - 1) if run.profile else 0
        if abs(excess) > 10:
            yield (
                f"The figure of where the time of a step goes shows steps profiled after the run. Those of {run.label} "
                f"({excess:+} %) took over 10 % longer or shorter than the timed ones, so it does not show where the "
                "time of the timed ones went."
            )


@said("limit")
def waiting(study: Study) -> Iterator[str]:
    if runs := [run for run in study.runs if run.outcome is None and not study.completed(run.label)]:
        yield f"{len(runs)} run of {runs[0].label} has no outcome yet."


@said("limit")
def unreadable(study: Study) -> Iterator[str]:
    if broken := sum(not attempt.manifest for run in study.runs for attempt in run.attempts):
        yield f"{broken} file could not be read: nothing from there is in this report."


@said("limit")
def one_process_each(study: Study) -> Iterator[str]:
    if study.task == "attention" and len({run.label for run in study.done}) == len(study.done):
        yield (
            "Each shape was measured in one process: intervals say how steady it was, not what another process would "
            "give."
        )


@said("limit")
def called_apart(study: Study) -> Iterator[str]:
    if study.task == "attention":
        processes = Counter(calls.case_of(run) for run in study.runs if run.kernels)
        if split_shapes := sum(count > 1 for count in processes.values()):
            yield (
                f"At {split_shapes} shape, not all backends were called in one process: two that no process called have no ratio."
            )


@said("limit")
def attention_alone(study: Study) -> Iterator[str]:
    if study.task == "attention":
        yield "Attention alone is not a training step: its share of one was not measured here."


@said("limit")
def clocks(study: Study) -> Iterator[str]:
    rows = [row for run in study.runs for row in run.kernels if row.get("sm_mhz")]
    if rows:
        low, high = (end(mhz for row in rows for mhz in row["sm_mhz"]) for end in (min, max))
        reasons = sorted({reason for row in rows for reason in row["throttle_reasons"]})
        yield f"The GPU's clock was {low} to {high} MHz after calls, throttled at times by {listed(reasons)}."


@said("limit")
def several_gpus(study: Study) -> Iterator[str]:
    gpus = {run.measured.manifest.get("gpu_uuid") for run in study.done}
    if study.task == "attention" and len(gpus) > 1:
        yield (
            f"The runs were on {len(gpus)} GPUs: what sets two shapes apart may be the GPUs. All backends of a run were "
            "on the same one."
        )


# Values of groups.


def efficiency(study: Study, label: str) -> Value:
    """Share of the ideal rate, over the first group."""
    base = next(iter(study.groups))
    mean, error, freedom = log_ratio(study.per_token(label), study.per_token(base))
    ideal = study.completed(label)[0].gpus / study.completed(base)[0].gpus
    half_width = t_quantile(0.975, freedom) * error
    return Value(exp(mean) / ideal, (exp(mean - half_width) / ideal, exp(mean + half_width) / ideal))


def speedup(study: Study, label: str) -> Value:
    """The rate over that of the first group."""
    share, first = efficiency(study, label), study.completed(next(iter(study.groups)))[0]
    gpu_ratio = study.completed(label)[0].gpus / first.gpus
    assert share.ends
    return Value(gpu_ratio * share.middle, (gpu_ratio * share.ends[0], gpu_ratio * share.ends[1]))


def final_loss(study: Study, label: str) -> Value:
    """Median over seeds of the last step's loss, a seed's repeats as their mean; t interval of three seeds or more."""
    seeds: dict[int | None, list[float]] = {}
    for run in study.completed(label):
        assert run.final_loss is not None
        seeds.setdefault(run.key[0], []).append(run.final_loss)
    means = [fmean(losses) for losses in seeds.values()]
    half_width = (
        t_quantile(0.975, len(means) - 1) * deviation(means) / len(means) ** 0.5 if len(means) > 2 else None
    )
    return Value(
        arithmetic_median(means),
        (fmean(means) - half_width, fmean(means) + half_width) if half_width else None,
    )


def loss_verdict(study: Study, label: str) -> tuple[str, str]:
    """By two one-sided tests; inconclusive without a margin."""
    margin = study.design["margins"].get("loss")
    if study.against(label) not in study.measured:
        return "", ""
    ends = study.loss_difference(label).ends
    if margin is None or ends is None:
        return "inconclusive", ""
    if -margin < ends[0] and ends[1] < margin:
        return "equivalent", f"within the stated margin of {margin} nats"
    if ends[0] > margin or ends[1] < -margin:
        return "different", f"by more than the stated margin of {margin} nats"
    return "inconclusive", f"the interval lies neither within nor beyond the stated margin of {margin} nats"


def one_after_the_other(study: Study, label: str) -> bool:
    """Whether all of its runs ended before the first of the baseline started, or the other way round."""
    if not study.against(label):
        return False
    times = [
        [(run.began, run.ended) for run in study.completed(group)]
        for group in (label, study.against(label))
        if group and study.completed(group)
    ]
    if len(times) < 2 or min(map(len, times)) == 1:
        return False
    return any(
        max(end for _, end in earlier) <= min(start for start, _ in later)
        for earlier, later in (times, times[::-1])
    )


def withheld(study: Study, label: str) -> str:
    """Why there is no verdict on runs one after the other."""
    labels = [label, study.against(label) or ""]
    first, second = sorted(labels, key=lambda group: study.completed(group)[0].began)
    return (
        f"Withheld, because the runs are not comparable: All runs of {first} ended before the first of {second} "
        "started: machine drift would look like an effect."
    )


def gpus_apart(study: Study, label: str) -> bool:
    """Whether two runs that stand for their groups were each on a GPU of its own."""
    pair = [study.completed(name) for name in (label, study.against(label) or "")]
    places = [{str(run.measured.manifest.get("gpu_uuid")) for run in runs if run.gpus == 1} for runs in pair]
    return all(len(runs) == 1 for runs in pair) and len(places[0] | places[1]) == 2


@cell("groups", "Verdict")
def verdict(study: Study, label: str) -> tuple[str, str]:
    baseline = study.against(label)
    if not baseline or label not in study.measured or baseline not in study.measured:
        return NONE, ""
    if one_after_the_other(study, label):
        return "withheld", withheld(study, label)
    ratio, margin = study.rate_ratio(label), study.design["margins"].get("tokens_per_second")
    faster = "faster" if ratio.middle > 1 else "slower"
    ends, sizes = ratio.ends, [len(study.completed(name)) for name in (label, baseline)]
    if 1 in sizes:
        basis = "in one run each" + (", of the same repeat" if max(sizes) > 1 else "")
        on_different_gpus = gpus_apart(study, label)
        if on_different_gpus:
            basis += ", on different GPUs"
        if ends and ends[0] <= 1 <= ends[1]:
            return (
                "inconclusive",
                f"{basis}: the {'range' if ratio.is_range else 'interval'} includes equality",
            )
        return (
            "observed",
            f"not a finding: {basis}{', whose own difference it includes' if on_different_gpus else ''}",
        )
    if margin:
        assert ends
        low, high, margin_text = ends[0] - 1, ends[1] - 1, f"the stated margin of {100 * margin} %"
        if -margin < low and high < margin:
            return "equivalent", f"within {margin_text}"
        if low > margin or high < -margin:
            addition = "; its loss differs" if loss_verdict(study, label)[0] == "different" else ""
            return faster, f"by more than {margin_text}{addition}"
        return "inconclusive", f"the interval is too wide for {margin_text}; more repeats would narrow it"
    p_values = study.holm
    p_value = p_values[frozenset((label, baseline))]
    if p_value <= 0.05:
        correction = f", corrected for {len(p_values)} pairs" if len(p_values) > 1 else ""
        return faster, f"by a test of the difference{correction}"
    return "inconclusive", (
        "not told apart, which does not make them equal: to test that, state margins: {tokens_per_second: PERCENT} in "
        "the study before it runs"
    )


# The overview's table of groups.


@cell("groups", "Tokens/s")
def rate(study: Study, label: str) -> tuple[str, str]:
    measured = label in study.measured
    return noted(
        study, label, study.over(label, lambda run, seconds: run.tokens / seconds) if measured else None
    )


@cell("groups", "Prompt tokens/s")
def prompt_rate(study: Study, label: str) -> str:
    """Without an interval, which is that of the milliseconds."""
    return (
        f"{study.over(label, lambda run, seconds: run.tokens / seconds).middle}"
        if label in study.measured
        else NONE
    )


@cell("groups", "Against baseline")
def against(study: Study, label: str) -> str:
    if study.is_baseline(label):
        return "baseline" if label in study.measured else NONE  # or else nothing is compared with it
    word = verdict(study, label)[0]
    if word in (NONE, "withheld"):
        return NONE
    ratio = study.rate_ratio(label)
    if ratio.ends and ratio.ends[1] - ratio.ends[0] > 1:
        return f"{percent(Value(ratio.middle))} no telling interval, n = {len(study.completed(label))}"
    several = min(len(study.completed(name)) for name in (label, study.against(label) or label)) > 1
    level = " (90 %)" if several and study.design["margins"].get("tokens_per_second") else ""
    return f"{percent(ratio)}{level}"


@cell("groups", "Efficiency")
def of_ideal(study: Study, label: str) -> tuple[str, str]:
    if study.name != "scaling" or label == next(iter(study.groups)):
        return NONE, ""
    share = efficiency(study, label)
    assert share.ends
    low, high = share.ends
    return (
        f"{100 * share.middle} % weak, {100 * low} to {100 * high} %",
        "replicated (DDP), 4 samples a step and process",
    )


@cell("groups", "Speed-up")
def times_as_fast(study: Study, label: str) -> str:
    if study.name != "scaling" or label == next(iter(study.groups)):
        return NONE
    times = speedup(study, label)
    assert times.ends
    return f"{times.middle} {times.ends[0]} to {times.ends[1]}"


@cell("groups", "MFU, %")
def mfu(study: Study, label: str) -> str:
    value = mfu_of(study, label)
    return NONE if value is None else f"{value.middle}"


def mfu_of(study: Study, label: str) -> Value | None:
    """Model FLOPs utilisation in percent."""
    if label not in study.measured or not study.completed(label)[0].measured.manifest["peak_flops"]:
        return None
    return study.over(label, lambda run, seconds: run.mfu(seconds) or 0.0)


@cell("groups", "Peak GiB per device")
def peak(study: Study, label: str) -> str:
    return f"{peak_of(study, label).middle}" if study.completed(label) else NONE


def peak_of(study: Study, label: str) -> Value:
    """Median over the completed runs."""
    return over_runs([run.peak_gib for run in study.completed(label)])


def energy_of(study: Study, label: str) -> Value:
    """Millijoules per token over the completed runs that have a reading."""
    return over_runs([reading for run in study.completed(label) if (reading := run.millijoules)])


@cell("groups", "Final loss")
def loss(study: Study, label: str) -> tuple[str, str]:
    if label not in study.measured:
        return NONE, ""
    text = estimate(final_loss(study, label))
    if study.against(label):
        kind, note = loss_verdict(study, label)
        if kind == "different":
            return f"{text} differs", note
    return text, ""


@cell("groups", "Training time")
def training(study: Study, label: str) -> tuple[str, str]:
    if label not in study.measured:
        return NONE, ""
    runs = study.completed(label)
    training_time = took(median(run.training for run in runs))
    if study.imported:
        return training_time, ""
    return f"{training_time} + {took(median(run.wall - run.training for run in runs))} other", attempts_of(
        study, label
    )


def attempts_of(study: Study, label: str) -> str:
    """How the attempts ended of runs that have several, and how long nothing ran between them."""
    texts = []
    for run in study.groups[label]:
        if len(run.attempts) > 1:
            pauses = [
                datetime.fromisoformat(after.manifest["started_at"])
                - datetime.fromisoformat(before.result["ended_at"])
                for before, after in pairwise(run.attempts)
            ]
            minutes = sum(pause.total_seconds() for pause in pauses) / 60
            ends = listed([attempt.result["outcome"] for attempt in run.attempts])
            texts.append(f"{len(run.attempts)} attempts ({ends}, {minutes} min between them)")
    trained = study.task == "training" and label in study.measured
    suffix = "; training time is of the steps alone, each once" if trained else ""
    return listed(texts) + suffix if texts else ""


@cell("groups", "n")
def size(study: Study, label: str) -> str:
    done, planned = len(study.completed(label)), len(study.groups[label])
    return f"{done}" if done == planned else f"{done} of {planned}"


@cell("groups", "Outcome")
def outcome(study: Study, label: str) -> tuple[str, str]:
    runs = study.groups[label]
    if study.imported and "steps" not in runs[0].config["train"]:
        return "unknown", ""
    counts = Counter(run.outcome or "not ended" for run in runs)
    ends = {
        end: count
        for end, count in counts.items()
        if len(counts) == 1 or end != "completed" or count != len(study.completed(label))
    }
    text = ", ".join(f"{count} {end}" if len(counts) > 1 else end for end, count in ends.items())
    failed = [run for run in runs if run.outcome not in (None, "completed")]
    unexpected = any(run.outcome != run.expected for run in failed)
    reason = (failed[0].plan["because"] or failed[0].measured.result["reason"]) if failed else ""
    several = [len(run.attempts) for run in runs if len(run.attempts) > 1]
    attempts_text = (
        f"{len(several)} of {len(runs)} in several attempts" if len(runs) > 1 else f"{sum(several)} attempts"
    )
    remarks = ", ".join(["not expected"] * unexpected + [attempts_text] * bool(several))
    return f"{text} {remarks}".strip(), "; ".join(filter(None, (reason, attempts_of(study, label))))


@cell("groups", "Prefill, ms")
def prefill(study: Study, label: str) -> tuple[str, str]:
    return noted(study, label, prefill_of(study, label))


def prefill_of(study: Study, label: str) -> Value:
    """Milliseconds of a prompt."""
    return study.over(label, lambda _run, seconds: 1e3 * seconds)


@cell("groups", "Prefill floor, %")
def floor(study: Study, label: str) -> str:
    return f"{median(100 * run.floor('step') / run.seconds for run in study.completed(label))}"


@cell("groups", "Token floor, %")
def decode_floor(study: Study, label: str) -> str:
    if not over_decoded(study, label):
        return NONE
    return (
        f"{median(100 * run.floor('decode') / plain_median(run.decoded) for run in study.completed(label))}"
    )


@cell("groups", "Decoded token, ms")
def decoded(study: Study, label: str) -> tuple[str, str]:
    return noted(study, label, over_decoded(study, label))


def over_decoded(study: Study, label: str) -> Value | None:
    """Milliseconds of a decoded position: of the median position of each run."""
    if not study.completed(label)[0].decoded:
        return None
    return over_runs([1e3 * plain_median(run.decoded) for run in study.completed(label)])


# Attention alone.


def _call(direction: str) -> Callable[[Study, str], tuple[str, str]]:
    return lambda study, name: (estimate(calls.time(study, calls.main(study), name, direction)), "")


for _direction in ("both", "forward", "backward"):
    CELLS.setdefault("backends", {})[f"{_direction.capitalize()}, ms"] = _call(_direction)


@cell("backends", "Speed over the fastest other")
def over_the_next(study: Study, name: str) -> tuple[str, str]:
    ahead = calls.lead(study, calls.main(study), name) if name in calls.at_main(study) else None
    if not ahead or not ahead.ratio.ends:
        return NONE, ""
    low, high = ahead.ratio.ends
    return f"{ahead.ratio.middle} {low} {NONE} {high}", f"times as fast as {ahead.over}, paired by round"


@cell("backends", "Kernel TFLOP/s")
def tflops(study: Study, name: str) -> str:
    case = calls.main(study)
    value = calls.rate(study, case, name, case.whole)
    return f"{value.middle}" if value else NONE


@cell("backends", "Memory, GiB")
def call_memory(study: Study, name: str) -> str:
    size = calls.memory(study, calls.main(study), name)
    return f"{size / GIB}" if size else NONE


@cell("backends", "Fastest at")
def fastest_at(study: Study, name: str) -> str:
    compared = [case for case in calls.cases(study) if len(calls.timed(study, case)) > 1]
    leads = [
        ahead
        for case in compared
        if name in calls.timed(study, case) and (ahead := calls.lead(study, case, name))
    ]
    return f"{sum(ahead.clear for ahead in leads)} of {len(compared)}"


@cell("backends", "Outcome")
def call_outcome(study: Study, name: str) -> tuple[str, str]:
    (row,) = {row["outcome"]: row for row in calls.rows(study, calls.main(study), name)}.values()
    outcome_text, reason = {"oom_gpu": "OOM"}.get(row["outcome"], row["outcome"]), row.get("reason", "")
    elsewhere: dict[str, dict[str, str]] = {}
    for case in calls.cases(study):
        for mode in ("eager", "graph") if case != calls.main(study) else ():
            for call_row in calls.rows(study, case, name, mode):
                key = call_row["outcome"], mode, call_row["direction"]
                if key[0] not in ("completed", "unsupported") or key == ("unsupported", "eager", "forward"):
                    elsewhere.setdefault(key[0], {})[call_row["run"]] = call_row["reason"]
    if elsewhere:
        ends = [
            f"{'OOM' if end == 'oom_gpu' else end} in {len(runs)} other run{'s' * (len(runs) > 1)}"
            for end, runs in sorted(elsewhere.items())
        ]
        reasons = {reason for end, runs in elsewhere.items() if end != "oom_gpu" for reason in runs.values()}
        outcome_text, reason = (
            f"{outcome_text} {', '.join(ends)}",
            "; ".join(sorted({*filter(None, [reason]), *reasons})),
        )
    return outcome_text, reason


# Small figures: with bars, and why there are none.

ABSENT: dict[str, Callable[[Study], str]] = {
    "Training loss, smoothed": lambda study: "" if study.measured else "No run logged a loss.",
    "Tokens per second": lambda study: "" if study.measured else "No run has this.",
    "Training time": lambda study: "" if study.measured else "No run has this.",
    "MFU, %": lambda study: "" if any(mfu_of(study, label) for label in study.groups) else (
        "No run has both a rate and a known peak: peak_tflops in the profile states it."),
}  # fmt: skip


def smoothed_losses(study: Study) -> dict[str, dict[int, float]]:
    """By group and step: the mean over its runs, and of that the mean over a twentieth of the steps around."""
    groups = {}
    for label, runs in study.groups.items():
        traces = [{record["step"]: record["loss"] for _, record in run.steps} for run in runs if run.steps]
        means = [fmean(trace[step] for trace in traces) for step in traces[0]] if traces else []
        half_width = len(means) // 40
        if means:
            groups[label] = {
                step: fmean(means[max(0, index - half_width) : index + half_width + 1])
                for index, step in enumerate(traces[0])
            }
    return groups


PANELS.update({
    "Tokens per second": lambda study, label: study.over(label, lambda run, s: run.tokens / s),
    "MFU, %": mfu_of,
    "Training time": lambda study, label: Value(median(run.training for run in study.completed(label))),
    "Efficiency, % of ideal": lambda study, label: None if label == next(iter(study.groups)) else Value(
        100 * efficiency(study, label).middle),
    "Prefill, ms": prefill_of,
    "Decoded token, ms": over_decoded,
    "Peak GiB per device": peak_of,
    "Forward, ms": lambda study, name: calls.time(study, calls.main(study), name, "forward"),
    "Backward, ms": lambda study, name: calls.time(study, calls.main(study), name, "backward"),
    "Kernel TFLOP/s, both": lambda study, name: calls.rate(study, calls.main(study), name, "both"),
    "Memory, GiB": lambda study, name: Value(float(call_memory(study, name))),
})  # fmt: skip


@said("limit")
def reported_elsewhere(study: Study) -> Iterator[str]:
    entries = study.runs[0].plan.get("reported_elsewhere", ())
    if entries:
        yield (
            f"What others report: {len(entries)} entries of reported are not shown, as there is no run of their cells at "
            f"scale {study.runs[0].plan['scale']}."
        )
