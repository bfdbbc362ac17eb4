"""Tables with booktabs rules, each a whole float: its caption keeps units and intervals with its numbers."""

from __future__ import annotations

from collections.abc import Sequence

from analysis.query.latex import breakable, escaped, said, tabular
from analysis.report import correctness, reported
from analysis.report.build import Contents
from analysis.stats import Estimate
from analysis.stats.estimate import RANGE
from analysis.stats.paired import Ratio
from analysis.stats.verdict import Verdict
from analysis.wording import readable as shown

_LONGEST = 30  # rows of a table that is not broken over pages
_WIDE = 22  # characters of LaTeX of a column of text that is not broken into lines
_FEW = 5  # columns, beyond which a table with broken lines has smaller gaps between them
_GAPS = r"@{\hspace{6pt}}"
_DASH = "--"


def tables(contents: Contents) -> dict[str, str]:
    """LaTeX by file name; a table without rows is left out."""
    backends = {"backends": _backends(contents), "correctness": _correctness(contents)}
    made = {"setup": _setup(contents), "reported": _reported(contents)}
    if contents.task.calls_every_backend:
        return {name: text for name, text in (made | backends).items() if text}
    made |= {"groups": _groups(contents), "ratios": _ratios(contents), "losses": _losses(contents)}
    made |= backends
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
        return f"\\begin{{table}}[htbp]\n\\centering\\small\n{title}\n{body}\\end{{table}}\n"
    head = f"\\toprule\n{' & '.join(heads)} \\\\\n\\midrule\n"
    lines = "".join(" & ".join(row) + " \\\\\n" for row in rows)
    start = f"{{\\small\n\\begin{{longtable}}{{{align}}}\n{title}\\\\\n"
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
        lines = task.lines(contents.facts, contents.comparison, contents.answer.verdicts)
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
            ends(rate, ",.0f") if rate else _DASH,
            escaped(tiers) or _DASH,
            _middle(group.mfu, ".1f"),
            _middle(group.peak_memory_gib, ",.1f"),
        ]
        row += [_middle(last.estimate(group), last.form)] if last else []
        rows.append(row)
    return table("groups", caption, heads, rows)


def _ratios(contents: Contents) -> str:
    rows = [
        (
            breakable(pair.label),
            breakable(pair.baseline),
            number(pair.shown.ratio, ".4f"),
            ends(pair.shown, ".4f"),
            str(pair.shown.n),
            pair.verdict.kind,
        )
        for pair in contents.comparison.rates.compared
    ]
    caption = (
        "Tokens per second over those of the baseline, paired by seed and repeat where enough of these are "
        "common, or the medians of one run each. "
        + _methods([pair.shown.method for pair in contents.comparison.rates.compared])
    )
    heads = ("Group", "Baseline", "Ratio", r"95\,\% interval", "$n$", "Verdict")
    return table("ratios", caption, heads, rows, "llrrrl")


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
    what = "range " if RANGE in given.method else ""
    return f"{what}{number(given.low, form)} to {number(given.high, form)}"


def number(value: float | None, form: str) -> str:
    """A number with a real minus sign, or a dash where it is unknown."""
    return _DASH if value is None else shown(value, form).replace("-", r"\ensuremath{-}")
