"""What is wrong or misleading in one log, each finding with its numbers.

Printed rates imply a FLOP per token and a peak: FLOP per token = tflops x 1e12 x GPUs / tokens per second,
peak = tflops / mfu. The formula is that of model.measure.flops; a count that differs from it is explained
where it equals a known mistake.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, takewhile
from statistics import fmean, median

from analysis.importers._mapping import LogQuantity, Mapping
from analysis.importers._points import (
    LoggedRun,
    LogPoint,
    NumberRange,
    StepRecords,
    common_range,
    implied_values,
    stated_interval,
    stated_interval_range,
    tokens_per_step,
)
from analysis.importers._table import shortened
from model.measure.flops import flop_per_token, peak
from model.record.config import ModelConfig
from model.record.imported import Finding
from model.record.units import counted

_BY_CHANCE = 1e-4  # relative: of a count that is known less well, no model is guessed
LOW, HIGH = "flop_per_token_low", "flop_per_token_high"  # what the printed digits leave open
_RATES: tuple[LogQuantity, ...] = ("tokens_per_second", "mfu", "tflops")
FLOP_FORMULA = "6 N + 12 L H Q T, N without the input embedding"


@dataclass(frozen=True)
class FlopCounts:
    """What is known about FLOP per token and peak.

    Attributes:
        flop_per_token: by the formula where the shape is known, else as stated or printed.
        peak_flops: of one GPU in FLOP/s: as stated, of the GPU's name, or printed.
        printed: what the log implies by itself, and plain means over all of its records.
        count: what the log's FLOP per token can be, by its digits; None if it implies none.
    """

    flop_per_token: int | None
    flop_source: str
    peak_flops: float | None
    peak_source: str
    printed: dict[str, float]
    count: NumberRange | None


def counts_of(points: Sequence[LogPoint], mapping: Mapping) -> FlopCounts:
    """What a log implies and its mapping states."""
    constants, dtype = mapping.constants, mapping.config.train.dtype
    printed: dict[str, float] = {}
    if flops := implied_values(points, "tflops", "tokens_per_second", 1e12 * max(1, constants.gpus or 1)):
        printed["flop_per_token"] = median(value for _, value, _ in flops)
        possible = common_range(possible for _, _, possible in flops)
        printed |= {LOW: possible.low, HIGH: possible.high}
    if peaks := implied_values(points, "tflops", "mfu", 1e14):
        printed["peak_flops"] = median(value for _, value, _ in peaks)
    for name in _RATES:
        if values := [value for point in points if (value := point.get(name)) is not None]:
            printed[name] = fmean(values)

    flop: int | None
    if flop := flop_of_shape(mapping):
        flop_source = f"computed from the shape in the mapping: {FLOP_FORMULA}"
    elif flop := constants.flop_per_token:
        flop_source = "the mapping"
    elif printed_flop := printed.get("flop_per_token"):
        flop, flop_source = round(printed_flop), "the log: tflops / tokens_per_second"
    else:
        flop, flop_source = None, "unknown"

    peak_flops: float | None
    if constants.peak_tflops:
        peak_flops, peak_source = constants.peak_tflops * 1e12, "the mapping"
    elif constants.gpu and dtype and (vendor_peak := peak(constants.gpu, dtype)):
        peak_flops, peak_source = vendor_peak.flops, vendor_peak.source
    elif printed_peak := printed.get("peak_flops"):
        peak_flops, peak_source = printed_peak, "the log: tflops / mfu"
    else:
        peak_flops, peak_source = None, "unknown"

    count = NumberRange(printed[LOW], printed[HIGH]) if LOW in printed else None
    return FlopCounts(flop, flop_source, peak_flops, peak_source, printed, count)


def flop_of_shape(mapping: Mapping) -> int | None:
    """FLOP per token of the shape that the mapping states; None if it states none."""
    shape, length = mapping.config.model, mapping.config.train.sequence_length
    return flop_per_token(shape.model_config_of(), length) if shape and length else None


@dataclass(frozen=True)
class ExplainedCount:
    """What a printed FLOP per token counts, in words, and what it should be."""

    what: str
    right: int


def explain_count(count: NumberRange, mapping: Mapping, tokens: int | None) -> ExplainedCount | None:
    """What a printed FLOP per token counts; None if it equals nothing that is known.

    Where no shape is stated, the 8B llama of `model.record.config` is tried, at each sequence length that the
    tokens per step allow: a count of many digits does not equal another model's by chance.
    """
    shape = mapping.config.model
    if shape is None and count.high > count.low * (1 + _BY_CHANCE):
        return None
    model = shape.model_config_of() if shape else ModelConfig()
    length = mapping.config.train.sequence_length
    per_step = tokens_per_step(mapping) or tokens
    lengths = [length] if length else [per_step // batch for batch in (1, 2, 4, 8, 16)] if per_step else []
    llama = (
        f"the llama with dim {model.dim}, {counted(model.layers, 'layer')}, {counted(model.heads, 'head')}, "
        f"ffn_dim {model.ffn_dim}, vocabulary {model.vocab_size}{' (as the mapping states)' * bool(shape)}"
    )
    embedding = 6 * model.vocab_size * model.dim
    name, unit = flop_unit(embedding)
    with_embedding = (
        f"6 N + 12 L H Q T with the input embedding in N, {embedding / unit:.2f} {name} too many (as counted "
        "by code that no longer finds the embedding, for example after torch.compile)"
    )
    for tokens_per_sample in lengths:
        right = flop_per_token(model, tokens_per_sample)
        attention = 12 * model.layers * model.heads * model.head_dim * tokens_per_sample
        for what, value in (
            (FLOP_FORMULA, right),
            (with_embedding, right + embedding),
            ("6 N alone, without the attention", right - attention),
            (
                "6 N alone, with the input embedding in N and without the attention",
                right + embedding - attention,
            ),
            ("half of the attention's FLOP, as if a causal mask were discounted", right - attention // 2),
        ):
            if count.holds(value):
                about = f"{what}, for {llama} at T = {tokens_per_sample:,}"
                return ExplainedCount(about, right)
    return None


_SLOW = 1.2  # times the median: a first record that is slower holds a warm-up
_FEWEST = 5  # records, below which no first one stands out
DISAGREE = 1e-3  # relative, beyond what printed digits explain: clocks are read one after the other
_OUTSIDE = 0.01  # of the time: less is between two ticks of a clock


@dataclass(frozen=True)
class ReadLog:
    """A log with everything that follows from it.

    Attributes:
        name: what to call the run.
    """

    name: str
    log: LoggedRun
    mapping: Mapping
    steps: StepRecords
    counts: FlopCounts

    @property
    def points(self) -> list[LogPoint]:
        """The records of the log, by step."""
        return self.log.points


def findings(read: ReadLog) -> list[Finding]:
    """What is wrong in one log, errors first."""
    all_findings = [finding for check in _CHECKS for finding in check(read)]
    return sorted(all_findings, key=lambda finding: finding.level != "error")


def _impossible(read: ReadLog) -> Iterator[Finding]:
    """Losses, durations and times that no run can have."""
    if bad := read.steps.not_finite:
        which = f"{counted(len(bad), 'record')} is NaN or infinite, first at step {bad[0]}"
        sentence = f"{read.name}: the loss of {which}."
        yield Finding(check="values", level="error", sentence=sentence, evidence={"steps": bad[-100:]})
    if wrong := read.steps.impossible:
        sentence = f"{read.name}: {len(wrong)} durations are zero or negative and were left out: "
        listed = "; ".join(shortened(wrong))
        yield Finding(
            check="values", level="error", sentence=f"{sentence}{listed}.", evidence={"lines": wrong}
        )

    if lines := read.log.clocks:
        times = "once" if len(lines) == 1 else f"{len(lines)} times"
        sentence = f"{read.name}: time goes back {times}: {'; '.join(shortened(lines))}."
        yield Finding(check="clock", level="error", sentence=sentence, evidence={"lines": lines})


def _warm_up(read: ReadLog) -> Iterator[Finding]:
    """An average over all records of a log whose first ones are slow."""
    seconds = [record.step_seconds for record in read.steps.records]
    timed = [value for value in seconds if value is not None]
    if len(timed) < _FEWEST or len(timed) < len(seconds):
        return
    slow = len(list(takewhile(lambda value: value > _SLOW * median(timed), timed)))
    if not 0 < slow <= len(timed) // 2:
        return
    # Each rate that all records print, else the seconds per step: over all records, and after the slow ones.
    rates = {name: [point.get(name) for point in read.points] for name in _RATES}
    series = {name: [value for value in values if value is not None] for name, values in rates.items()}
    series = {name: values for name, values in series.items() if len(values) == len(read.points)}
    series = series or {"step_seconds": timed}
    means = {name: (fmean(values), fmean(values[slow:])) for name, values in series.items()}
    first, line = read.points[0], read.log.at(read.points[0].line)
    changed = "; ".join(
        f"{name} {_short(every)} over all, {_short(rest)} without ({every / rest - 1:+.2%})"
        for name, (every, rest) in means.items()
    )
    which = "the first record" if slow == 1 else f"the first {slow} records"
    sentence = (
        f"{read.name}: {which} ({line}, step {first.step}) took {timed[0]:.3g} s a step, the median is "
        f"{median(timed):.3g} s: it includes the warm-up, and so does every mean over all records: {changed}."
    )
    evidence = {
        "records": slow,
        "step": first.step,
        "step_seconds": timed[0],
        "median": median(timed),
        "means": means,
    }
    yield Finding(check="warm-up", level="note", sentence=sentence, evidence=evidence)


def _flop(read: ReadLog) -> Iterator[Finding]:
    """The FLOP per token that the printed rates imply, against the formula."""
    gpus = max(1, read.mapping.constants.gpus or 1)
    implied = implied_values(read.points, "tflops", "tokens_per_second", 1e12 * gpus)
    if not implied:
        return
    contradiction = (
        "tflops / tokens_per_second is {:.4g} GFLOP per token at step {} and {:.4g} at step {}: they count "
        "different things."
    )
    if apart := _apart(read, implied, contradiction, 1e9):
        yield apart
        return
    count, possible = read.counts.printed["flop_per_token"], read.counts.count
    assert possible is not None, "the records imply one"
    per_step = {record.tokens / record.steps for record in read.steps.records if record.tokens}
    tokens = round(per_step.pop()) if len(per_step) == 1 else None
    explanation = explain_count(possible, read.mapping, tokens)
    what = explanation.what if explanation else None
    true = (
        flop_of_shape(read.mapping)
        or read.mapping.constants.flop_per_token
        or (explanation.right if explanation else None)
    )
    evidence = {"printed": count}
    if true and not possible.holds(true):
        evidence["true"] = true
        name, unit = flop_unit(count, true)
        share, digits, mfu = 100 * (count / true - 1), digits_apart(count, true, unit), ""
        if printed_mfu := read.counts.printed.get("mfu"):
            true_mfu = printed_mfu * true / count
            evidence |= {"printed_mfu": printed_mfu, "true_mfu": true_mfu}
            mfu = f" Its mean MFU of {printed_mfu:.2f} % is really {true_mfu:.2f} %."
        why = f", which is {what}" if what else ""
        sentence = (
            f"{read.name}: the log counts {count / unit:.{digits}f} {name} per token{why}; the correct "
            f"count is {true / unit:.{digits}f} ({FLOP_FORMULA}), "
            f"{share:+.{digits_apart(share, 0.0, 1.0, 1)}f} %.{mfu}"
        )
        yield Finding(check="flop_per_token", level="error", sentence=sentence, evidence=evidence)
    else:
        name, unit = flop_unit(count)
        about = what or ("as the mapping states" if true else "which no shape in the mapping confirms")
        sentence = f"{read.name}: the log counts {count / unit:.3f} {name} per token: {about}."
        if true and (peak := read.counts.printed.get("peak_flops")):
            sentence += f" So its MFU is correct, over a peak of {peak / 1e12:,.1f} TFLOP/s."
        yield Finding(check="flop_per_token", level="note", sentence=sentence, evidence=evidence)


_FLOP_UNITS = {"GFLOP": 1e9, "MFLOP": 1e6, "kFLOP": 1e3}


def flop_unit(*counts: float) -> tuple[str, float]:
    """The largest unit of which each count has one or more, or is 0: `("MFLOP", 1e6)`."""
    least = min(filter(None, counts), default=1e9)
    return next(((name, size) for name, size in _FLOP_UNITS.items() if least >= size), ("FLOP", 1.0))


def digits_apart(a: float, b: float, unit: float, fewest: int = 2) -> int:
    """Decimals, in a unit, at which two numbers that differ are seen to do so."""
    return next(n for n in range(fewest, 17) if f"{a / unit:.{n}f}" != f"{b / unit:.{n}f}" or n == 16)


def _apart(
    read: ReadLog, implied: list[tuple[LogPoint, float, NumberRange]], contradiction: str, unit: float
) -> Finding | None:
    """What says that the printed metrics imply several values of what should be one; None if they do not."""
    first, low, lowest = min(implied, key=lambda value: value[2].high)
    second, high, highest = max(implied, key=lambda value: value[2].low)
    if highest.low <= lowest.high * (1 + DISAGREE):
        return None
    sentence = f"{read.name}: {contradiction.format(low / unit, first.step, high / unit, second.step)}"
    return _metrics(sentence, low=low, high=high, steps=[first.step, second.step])


def _metrics(sentence: str, **evidence: object) -> Finding:
    return Finding(check="metrics", level="error", sentence=sentence, evidence=evidence)


def _rate_and_seconds(read: ReadLog) -> Iterator[Finding]:
    """Tokens per second x seconds must be the tokens of the steps between two records."""
    if _averages(read):  # those of rates and of seconds do not multiply
        return
    per_step = tokens_per_step(read.mapping)
    for point, record in zip(read.points, read.steps.records, strict=True):
        rate, seconds = point.get("tokens_per_second"), stated_interval(point, record.steps)
        wanted = per_step * record.steps if per_step else point.get("tokens")
        tokens = _tokens_range(point, record.steps)
        if rate is None or seconds is None or tokens is None or not wanted or tokens.holds(wanted, DISAGREE):
            continue
        sentence = (
            f"{read.name}: {read.log.at(point.line)}, step {point.step}: {rate:,.1f} tokens/s over "
            f"{seconds:.4g} s are {rate * seconds:,.0f} tokens; {counted(record.steps, 'step')} should have "
            f"{wanted:,.0f}."
        )
        yield _metrics(sentence, step=point.step, rate=rate, seconds=seconds, tokens=wanted)
        return
    if per_step is None and not any(point.get("tokens") for point in read.points):
        yield from _uneven(read)


def _tokens_range(point: LogPoint, steps: int) -> NumberRange | None:
    rate, seconds = point.range_of("tokens_per_second"), stated_interval_range(point, steps)
    return rate.times(seconds) if rate and seconds else None


def _averages(read: ReadLog) -> bool:
    """Whether the log is one line about many steps."""
    return len(read.points) == 1 and read.steps.records[0].steps > 1


def _less_exact(read: ReadLog) -> Iterator[Finding]:
    """What makes the log's numbers less exact than those of other logs."""
    # A printed rate without a token count: the database derives rates from tokens and seconds if it can.
    alone = sum(record.printed_tokens_per_second is not None for record in read.steps.records)
    if alone:
        sentence = (
            f"{read.name}: tokens_per_second is in {counted(alone, 'record')} without the number of tokens "
            "or seconds behind it: the run's rate is the median of those printed; to have it from tokens and "
            "seconds, add `constants: {tokens_per_step: N}` to the mapping."
        )
        yield Finding(check="metrics", level="note", sentence=sentence, evidence={"records": alone})

    # An average over a whole run.
    if _averages(read) and any(read.points[0].get(name) is not None for name in _RATES):
        steps = read.steps.records[0].steps
        sentence = (
            f"{read.name}: the log is one line about {counted(steps, 'step')}: its rates are averages that "
            "include the warm-up."
        )
        yield Finding(check="warm-up", level="note", sentence=sentence, evidence={"covers": steps})

    # A value that may have been cut off.
    if read.points[-1].line == read.log.table.unended:
        line = read.log.at(read.points[-1].line)
        sentence = f"{read.name}: no line break ends {line}: its last value may lack digits."
        yield Finding(check="records", level="note", sentence=sentence)


def _uneven(read: ReadLog) -> Iterator[Finding]:
    """Where nobody states the tokens per step, the printed rates and seconds must imply one number."""
    implied = [
        (
            rate * seconds / record.steps,
            point,
            NumberRange(tokens.low / record.steps, tokens.high / record.steps),
        )
        for point, record in zip(read.points, read.steps.records, strict=True)
        if (rate := point.get("tokens_per_second"))
        and (seconds := stated_interval(point, record.steps))
        and (tokens := _tokens_range(point, record.steps))
    ]
    if not implied:
        return
    usual = median(value for value, _, _ in implied)
    off = [(value, point) for value, point, possible in implied if not possible.holds(usual, DISAGREE)]
    if 0 < len(off) <= len(implied) // 2:  # otherwise the batches are of many sizes
        value, point = off[0]
        sentence = (
            f"{read.name}: tokens_per_second x seconds / steps is {usual:,.1f} tokens in most records, "
            f"but {value:,.1f} at step {point.step} ({read.log.at(point.line)}); "
            f"{counted(len(off), 'record')} differ{'s' * (len(off) == 1)}."
        )
        yield _metrics(sentence, usual=usual, steps=[point.step for _, point in off][:100])


def _mfu_and_peak(read: ReadLog) -> Iterator[Finding]:
    """The mfu must be at most 100 %, and tflops over a single peak, the right one."""
    if over := [(value, point) for point in read.points if (value := point.get("mfu") or 0.0) > 100]:
        value, point = over[0]
        sentence = (
            f"{read.name}: mfu is above 100 % in {counted(len(over), 'record')}, first at step {point.step} "
            f"({read.log.at(point.line)}), {value:g} %: its unit or the peak that it is over is wrong."
        )
        yield _metrics(sentence, steps=[point.step for _, point in over][:100])
    implied = implied_values(read.points, "tflops", "mfu", 1e14)
    if not implied:
        return
    contradiction = "tflops / mfu is a peak of {:,.1f} TFLOP/s at step {} and of {:,.1f} at step {}."
    if apart := _apart(read, implied, contradiction, 1e12):
        yield apart
        return
    peak, low = read.counts.peak_flops, read.counts.printed["peak_flops"]
    if peak and not common_range(possible for _, _, possible in implied).holds(peak, DISAGREE):
        sentence = (
            f"{read.name}: mfu is tflops over a peak of {low / 1e12:,.1f} TFLOP/s, but that is "
            f"{peak / 1e12:,.1f} ({read.counts.peak_source}): the true MFU is {low / peak:.3f} "
            "times the printed one."
        )
        yield _metrics(sentence, printed=low, true=peak)


def _padding(read: ReadLog) -> Iterator[Finding]:
    """The rate of training tokens over that of all tokens must be their percentage."""
    for point, ratio, ratios in implied_values(
        read.points, "training_tokens_per_second", "tokens_per_second", 100.0
    ):
        share, shares = (
            point.get("training_tokens_percentage"),
            point.range_of("training_tokens_percentage"),
        )
        if share is None or shares is None:
            continue
        off = DISAGREE * max(share, 1.0)
        if ratios.low - off > shares.high or ratios.high + off < shares.low:
            sentence = (
                f"{read.name}: {read.log.at(point.line)}, step {point.step}: training_tokens_percentage is "
                f"{share:.3f} %, but the rates of training tokens and of all tokens give {ratio:.3f} %."
            )
            yield _metrics(sentence, step=point.step, printed=share, implied=ratio)
            return


def _clock_and_seconds(read: ReadLog) -> Iterator[Finding]:
    """The clock must count at least the seconds that the records add up to."""
    times = [point.time for point in read.points]
    pairs = list(zip(read.points, read.steps.records, strict=True))[1:]
    seconds = [stated_interval(point, record.steps) for point, record in pairs]
    if read.log.clocks or not seconds or None in times or None in seconds:
        return
    clock = sum((b - a).total_seconds() for a, b in pairwise(time for time in times if time))
    measured = sum(value for value in seconds if value)
    digits = [stated_interval_range(point, record.steps) for point, record in pairs]
    open_ = sum((possible.high - possible.low) / 2 for possible in digits if possible)
    if not clock or measured > clock * (1 + _OUTSIDE) + 1 + open_:
        sentence = (
            f"{read.name}: the records add up to {measured:,.1f} s, but the log's clock counts "
            f"{clock:,.1f} s from step {read.points[0].step} to step {read.points[-1].step}."
        )
        yield _metrics(sentence, clock=clock, measured=measured)
    elif clock > measured * (1 + _OUTSIDE) + 1 + open_:
        sentence = (
            f"{read.name}: the clock counts {clock:,.1f} s where the records add up to {measured:,.1f} s: "
            f"{1 - measured / clock:.1%} of the time counts in no rate (logging, data, checkpoints)."
        )
        evidence = {"clock": clock, "measured": measured}
        yield Finding(check="metrics", level="note", sentence=sentence, evidence=evidence)


def _short(value: float) -> str:
    return f"{value:,.1f}" if value >= 100 else f"{value:.4g}"


_Check = Callable[[ReadLog], Iterator[Finding]]
_CHECKS: tuple[_Check, ...] = (
    _impossible, _flop, _rate_and_seconds, _less_exact, _mfu_and_peak, _padding, _warm_up, _clock_and_seconds,
)  # fmt: skip
