"""Tables with booktabs rules, each a whole float: its caption keeps units and intervals with its numbers."""

from __future__ import annotations

from collections.abc import Sequence

from analysis.query.latex import breakable, escaped, said, tabular
from analysis.report import correctness, reported
from analysis.report.build import Contents
from analysis.report.render import corrected_p
from analysis.report.tasks.attention import shapes
from analysis.stats import Estimate
from analysis.stats.paired import Ratio
from analysis.stats.verdict import Verdict
from analysis.verdicts.rates import RateVerdict
from analysis.wording import in_a_row, range_word
from analysis.wording import readable as shown

_LONGEST = 30  # rows of a table that is not broken over pages
_WIDE = 22  # characters of LaTeX of a column of text that is not broken into lines
_MANY = 7  # columns, beyond which a table over several pages has small letters
_AT_MOST = (
    r"\ifdim\width>\linewidth\linewidth\else\width\fi"  # the page's width, for a table without paragraphs
)
_FEW = 5  # columns, beyond which a table with broken lines has smaller gaps between them
_GAPS = r"@{\hspace{6pt}}"
_DASH = "--"
FIGURE = "figure_"  # what the names of tables of figures' values begin with


def tables(contents: Contents) -> dict[str, str]:
    """LaTeX of the tables of all pages, by file name; a table without rows is left out."""
    backends = {"backends": _backends(contents), "correctness": _correctness(contents)}
    made = {"setup": _setup(contents), "reported": _reported(contents)}
    if contents.task.calls_every_backend:
        made |= {"groups": _overview(contents)} | backends | _shapes(contents) | _values(contents)
        return {name: text for name, text in made.items() if text}
    made |= {"groups": _groups(contents), "ratios": _ratios(contents), "steps": _steps(contents)}
    made["losses"] = _losses(contents)
    made |= _rankings(contents) | backends | _values(contents)
    for name, answer in contents.metrics.items():
        rows = [tuple(map(_cell, row)) for row in answer.rows]
        note = escaped(contents.task.metrics[name].note)
        made[name] = table(name, note, list(map(escaped, answer.columns)), rows)
    return {name: text for name, text in made.items() if text}


def table(
    name: str, caption: str, heads: Sequence[str], rows: Sequence[Sequence[str]], align: str | None = None
) -> str:
    r"""A float, or a table over several pages if it is long.

    Args:
        name: `\label{tab:NAME}`.
        caption, heads, rows: LaTeX already.
        align: columns, `l` for text and `r` for numbers; by default the first of text. A column of text that
            is too wide breaks its lines.
    """
    if not rows:
        return ""
    align = _broken(align or "l" + "r" * (len(heads) - 1), rows)
    title = rf"\caption{{{caption}}}\label{{tab:{name}}}"
    if len(rows) <= _LONGEST:
        body = tabular(align, heads, rows)
        body = f"\\resizebox{{{_AT_MOST}}}{{!}}{{%\n{body}}}\n" if set(align) <= set("lr") else body
        return f"\\begin{{table}}[htbp]\n\\centering\\small\n{title}\n{body}\\end{{table}}\n"
    head = f"\\toprule\n{' & '.join(heads)} \\\\\n\\midrule\n"
    lines = "".join(" & ".join(row) + " \\\\\n" for row in rows)
    size = r"\tiny\setlength{\tabcolsep}{2pt}" if len(heads) > _MANY else r"\small"
    start = f"{{{size}\n\\begin{{longtable}}{{{align}}}\n{title}\\\\\n"
    return (
        f"{start}{head}\\endfirsthead\n{head}\\endhead\n\\bottomrule\n\\endlastfoot\n{lines}"
        "\\end{longtable}}\n"
    )


def _broken(align: str, rows: Sequence[Sequence[str]]) -> str:
    """The columns, with those of long text as paragraphs that share what the page is wide."""
    if set(align) - set("lr"):
        return align
    wide = {at for at, kind in enumerate(align) if kind == "l" and any(len(row[at]) > _WIDE for row in rows)}
    if not wide:
        return align
    column = rf">{{\raggedright\arraybackslash}}p{{{2.8 if len(align) > _FEW else 3.4}cm}}"
    kinds = [column if place in wide else kind for place, kind in enumerate(align)]
    return (_GAPS if len(align) > _FEW else "").join(kinds)


def _setup(contents: Contents) -> str:
    changed = any(line.changed for line in contents.setup)
    rows = [
        (
            said(line.topic),
            said(line.value) + (rf" \emph{{(changed: {said(line.changed)})}}" * bool(line.changed)),
        )
        for line in contents.setup
    ]
    caption = "Setup." + " In italics: what the launch changed, against the study file." * changed
    ragged = r">{\raggedright\arraybackslash}p"
    return table("setup", caption, ("Topic", "Value"), rows, f"{ragged}{{3.6cm}}{ragged}{{11.4cm}}")


def _groups(contents: Contents) -> str:
    task = contents.task
    if columns := task.writeup.columns:
        lines = task.lines(contents.facts, contents.answer.verdicts)
        return table(
            "groups",
            said(task.writeup.note),
            [task.first, *(escaped(column.head) for column in columns)],
            [
                (breakable(label), *(said(column.cell(line).text) for column in columns))
                for label, line in lines.items()
            ],
            "l" + "".join("l" if column.is_text else "r" for column in columns),
        )
    last = task.writeup.last
    heads = ["Group", "$n$", "Tokens/s", "95\\,\\% interval", "Tier", r"MFU, \%", "Memory, GiB"]
    heads += [last.head] if last else []
    caption = (
        "Groups, in the order of the study: medians over $n$ completed runs, rates without the warm-up. The "
        "interval is that of the tokens per second; memory is the peak, whose interval is with its "
        f"figure{f', {last.note}' if last else ''}. The tests do not tell groups of one tier apart; a single "
        "run has none."
    )
    rows = []
    for group in contents.facts.groups:
        rate, tiers = group.tokens_per_second, ", ".join(contents.comparison.rates.tiers(group.label))
        row = [
            breakable(group.label),
            str(group.n),
            _middle(rate, ",.0f"),
            ends(rate.telling, ",.0f") if rate else _DASH,
            escaped(tiers) or _DASH,
            _middle(group.mfu, ".1f"),
            _middle(group.peak_memory_gib, ",.1f"),
        ]
        row += [_middle(last.estimate(group), last.form)] if last else []
        rows.append(row)
    return table("groups", caption, heads, rows)


_PAIRED = "paired by seed and repeat where enough of these are common, or the medians of one run each. "
_RATIO = ("Ratio", r"95\,\% interval", "$n$", "Verdict")


def _ratios(contents: Contents) -> str:
    pairs = contents.comparison.rates.compared
    rows = [(breakable(pair.label), *_ratio(pair)) for pair in pairs]
    caption = "Tokens per second over those of the baseline, " + _PAIRED
    caption += _methods([pair.shown.method for pair in pairs])
    return table("ratios", caption, ("Group", "Baseline", *_RATIO), rows, "llrrrl")


def _steps(contents: Contents) -> str:
    steps = contents.comparison.rates.steps
    rows = [(breakable(step.setting), *_ratio(step.rate)) for step in steps]
    caption = (
        "Tokens per second with a setting over those of the group that lacks it and is otherwise the same, "
    )
    caption += _PAIRED + _methods([step.rate.shown.method for step in steps])
    return table("steps", caption, ("Setting", "Added to", *_RATIO), rows, "llrrrl")


def _ratio(pair: RateVerdict) -> tuple[str, ...]:
    ratio = pair.shown
    numbers = number(ratio.ratio, ".4f"), ends(ratio, ".4f"), str(ratio.n)
    return (breakable(pair.baseline), *numbers, pair.verdict.kind)


def _losses(contents: Contents) -> str:
    rows = [
        (
            breakable(pair.label),
            breakable(pair.baseline),
            number(pair.verdict.difference, "+.4f"),
            ends(pair.verdict, "+.4f"),
            number(pair.margin, "g"),
            pair.verdict.kind,
        )
        for pair in contents.comparison.losses
    ]
    caption = (
        "Loss minus that of the baseline over the last fifth of the steps, in nats per token. "
        + _methods([pair.verdict.method for pair in contents.comparison.losses])
    )
    return table(
        "losses",
        caption,
        ("Group", "Baseline", "Difference", "Interval", "Margin", "Verdict"),
        rows,
        "llrrrl",
    )


def _rankings(contents: Contents) -> dict[str, str]:
    """The tiers of all rankings, and every pair of each."""
    rates = contents.comparison.rates
    tiers = [
        (rates.name(ranking, number), breakable(in_a_row(tier)))
        for ranking in rates.rankings
        for number, tier in enumerate(ranking.tiers, start=1)
    ]
    pairs = [
        (
            *map(breakable, pair),
            number(verdict.difference and 1 + verdict.difference, ".4f"),
            _DASH
            if verdict.low is None or verdict.high is None
            else f"{1 + verdict.low:.4f} to {1 + verdict.high:.4f}",
            escaped(corrected_p(verdict)),
            {"different": "faster", "inconclusive": "not told apart"}.get(verdict.kind, verdict.kind),
        )
        for ranking in rates.rankings
        for pair, verdict in ranking.verdicts.items()
    ]
    of_tiers = (
        "Tiers by tokens per second, from the fastest. Tests do not tell the groups of one tier apart; a "
        "group can be in several."
    )
    of_pairs = (
        "Tokens per second of the first group over those of the second, with the 95\\,\\% interval, and the "
        "p value of no difference at all, corrected for all pairs."
    )
    heads = ("Group", "Against", "Ratio", r"95\,\% interval", "$p$", "Verdict")
    ragged = r">{\raggedright\arraybackslash}p"
    return {
        "ranking": table("ranking", of_tiers, ("Tier", "Groups"), tiers, f"l{ragged}{{13cm}}"),
        "pairs": table("pairs", of_pairs, heads, pairs, "llrrrl"),
    }


def _overview(contents: Contents) -> str:
    """The table of the first page, of a task whose lines are backends."""
    columns = contents.overview.columns
    rows = [
        (breakable(label), *(escaped(cell.text or _DASH) for cell, _ in cells))
        for label, cells in contents.overview.lines.items()
    ]
    heads = [contents.task.first, *(escaped(column.head) for column in columns)]
    align = "l" + "".join("l" if column.is_text else "r" for column in columns)
    caption = "Backends at the shape that most were timed at, and at how many cases each is the fastest."
    return table("groups", caption, heads, rows, align)


def _shapes(contents: Contents) -> dict[str, str]:
    """Every shape, a table for each way of calling: milliseconds of the median call by backend."""
    latex = {}
    for shape_table in shapes(contents.facts.kernels_and_gone):
        rows = [
            (
                escaped(line.shape),
                line.direction,
                *(
                    escaped(cell.gone) or _DASH
                    if cell.milliseconds is None
                    else number(cell.milliseconds, ",.3g")
                    for cell in line.cells
                ),
            )
            for line in shape_table.lines
        ]
        caption = f"Every shape: milliseconds of the median call. {escaped(shape_table.how)}."
        heads = ("Shape", "Direction", *map(breakable, shape_table.backends))
        latex[f"shapes_{shape_table.mode}"] = table(
            f"shapes-{shape_table.mode}", caption, heads, rows, "ll" + "r" * len(shape_table.backends)
        )
    return latex


def _values(contents: Contents) -> dict[str, str]:
    """The values of each figure, as its page has them below it."""
    made = {}
    for drawn in contents.figures:
        if drawn.figure and (values := drawn.figure.table):
            name, rows = f"{FIGURE}{drawn.name}", [tuple(map(breakable, row)) for row in values.rows]
            caption = (
                f"{said(drawn.title)}: values{escaped(f', {values.thinned}' if values.thinned else '')}."
            )
            align = "".join(
                "l" if any(cell.rstrip(".")[-1:].isalpha() for cell in column) else "r"
                for column in zip(*values.rows, strict=True)
            )
            label = name.replace("_", "-")
            made[name] = table(label, caption, list(map(breakable, values.columns)), rows, f"l{align[1:]}")
    return made


def _reported(contents: Contents) -> str:
    """What others report, beside ours; below each entry what is wrong with it, over all columns."""
    heads = ("Group", "Quantity", "Theirs", "Ours", "Ours against theirs", "Their hardware", "Source")
    lines, ragged = reported.lines(contents.facts), r">{\raggedright\arraybackslash}p"
    rows: list[tuple[str, ...]] = []
    for line in lines:
        first, *rest = [
            (said(value.title), said(value.theirs), said(value.ours), said(value.ratio))
            for value in line.values
        ]
        about = breakable(line.hardware), f"{breakable(line.source)}, {line.read}"
        rows += [(breakable(line.label), *first, *about), *(("", *values, "", "") for values in rest)]
        for flag in line.flags:
            rows.append((rf"\multicolumn{{{len(heads)}}}{{{ragged}{{15cm}}}}{{\emph{{{said(flag)}}}}}",))
    two_lines = r">{\raggedleft\arraybackslash}p{1.7cm}"
    texts = [f"{ragged}{{{centimetres}cm}}" for centimetres in (2.6, 2, 2, 3)]
    align = _GAPS.join((*texts[:2], "r", "r", two_lines, *texts[2:]))
    caption = said(" ".join((reported.ABOUT, *reported.no_ratios(lines))))
    return table("reported", caption, heads, rows, align)


def _backends(contents: Contents) -> str:
    rows = [
        (
            breakable(row["attention"]),
            breakable(row["device_name"] or "no device"),
            row["verdict"],
            f"{row['checks']:,d}",
            f"{row['failed']:,d}",
        )
        for row in contents.backends.certificates
    ]
    caption = "Certificates of the backends: whether each computes attention, and with kernels of its own."
    heads = ("Backend", "Device", "Verdict", "Checks", "Failed")
    return table("backends", caption, heads, rows, "lllrr")


def _correctness(contents: Contents) -> str:
    rows = [
        (
            breakable(row["attention"]),
            escaped(row["test"]),
            escaped(row["precision"] or _DASH),
            _cell(correctness.value(row)).replace("-", r"\ensuremath{-}"),
            number(row["plain"], ",.3g"),
            number(row["tolerance"], ",.3g"),
            row["result"],
        )
        for row in contents.backends.tested
    ]
    heads = ("Backend", "Test", "Precision", "Value", "Math", "Allowed", "Result")
    return table("correctness", said(contents.backends.about_tests), heads, rows, "lllrrrl")


def _cell(value: object) -> str:
    if value is None:
        return _DASH
    return number(value, ",") if isinstance(value, int | float) else breakable(str(value))


def _methods(methods: list[str]) -> str:
    return f"Intervals: {said('; '.join(dict.fromkeys(methods)))}."


def _middle(estimate: Estimate | None, form: str) -> str:
    return number(estimate.median if estimate else None, form)


def ends(given: Estimate | Ratio | Verdict, form: str) -> str:
    """Those of an interval, or of a range after that word; a dash where there is none."""
    if given.low is None or given.high is None:
        return _DASH
    return f"{range_word(given.is_range)}{number(given.low, form)} to {number(given.high, form)}"


def number(value: float | None, form: str) -> str:
    """A number with a real minus sign, or a dash where it is unknown."""
    return _DASH if value is None else shown(value, form).replace("-", r"\ensuremath{-}")
