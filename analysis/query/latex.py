"""Text and tables for LaTeX. pdflatex must set whatever a study's text contains, and must drop none of it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import pairwise
from unicodedata import lookup

_SPECIAL = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "|": r"\textbar{}",
    "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}",
    '"': r"\textquotedbl{}", "`": r"\textasciigrave{}", "\N{NO-BREAK SPACE}": "~",
    # At the start of a table's row these would belong to the line break before it.
    "[": "{[}", "]": "{]}", "*": "{*}",
    "\N{RIGHTWARDS ARROW}": r"\textrightarrow{}", "\N{LEFTWARDS ARROW}": r"\textleftarrow{}",
}  # fmt: skip
_SYMBOLS = {"\N{MINUS SIGN}": "-", "≤": r"\le", "≥": r"\ge", "≈": r"\approx", "≠": r"\ne", "∞": r"\infty"}
_GREEK = (
    "alpha beta gamma delta epsilon zeta eta theta iota kappa lamda mu nu xi pi rho sigma tau upsilon phi "
    "chi psi omega"
)
_CAPITAL = "gamma delta theta lamda xi pi sigma upsilon phi psi omega"  # the others look like Latin letters
for _name in _GREEK.split():
    _SYMBOLS[lookup(f"GREEK SMALL LETTER {_name}")] = "\\" + _name.replace("lamda", "lambda")
for _name in _CAPITAL.split():
    _SYMBOLS[lookup(f"GREEK CAPITAL LETTER {_name}")] = "\\" + _name.replace("lamda", "lambda").title()
_SPECIAL |= {character: rf"\ensuremath{{{command}}}" for character, command in _SYMBOLS.items()}
# What LaTeX sets in the T1 encoding as it stands: Latin letters, and the punctuation of European languages.
_PLAIN = re.compile(
    "[ -~\u00a1-\u00ac\u00ae-\u0125\u0128-\u0137\u0139-\u013e\u0141-\u0148\u014a-\u0165\u0168-\u017e"
    "\u0218-\u021b\u2013\u2014\u2018-\u201a\u201c-\u201e\u2020-\u2022\u2026\u2030\u2039\u203a\u20ac\u2116\u2122]"
)
_LIGATURES = {"--", "''", ",,", "?`", "!`"}  # in T1, pairs become one character
_LONG, _PIECE = 16, 12  # characters of a word that is not broken, and of a piece of one without punctuation
_PARTS = re.compile(r"[^_=./,:;\\|&?()<>\]]+[_=./,:;\\|&?()<>\]]*|[_=./,:;\\|&?()<>\]]+")
_SPACE = re.compile(r"[\t\n\r\f\v]+")


def escaped(text: str) -> str:
    """Text that pdflatex sets as it is, in the T1 encoding; a character that it cannot set becomes its code.

    Line breaks become spaces. An emoji becomes `[U+1F600]`.
    """
    text = _SPACE.sub(" ", text)
    made = []
    for character, after in pairwise(text + " "):
        if character in _SPECIAL:
            made.append(_SPECIAL[character])
        else:
            made.append(character if _PLAIN.match(character) else f"{{[}}U+{ord(character):04X}{{]}}")
        if character + after in _LIGATURES:
            made.append("{}")
    return "".join(made)


def breakable(text: str) -> str:
    """The same, with places where TeX may break a long word, as URLs have them: after its punctuation.

    What has no punctuation either, such as a hash, breaks anywhere.
    """
    words: list[str] = []
    for word in _SPACE.sub(" ", text).split(" "):
        if len(word) < _LONG:
            words.append(escaped(word))
            continue
        pieces: list[str] = []  # that TeX may break between
        for part in _PARTS.findall(word):
            step = _PIECE if len(part) > 2 * _PIECE else len(part)
            pieces += (part[start : start + step] for start in range(0, len(part), step))
        words.append(r"\allowbreak{}".join(map(escaped, pieces)))
    return " ".join(words)


def said(sentence: str) -> str:
    """A sentence in which `backticks` mark code, with real minus signs and thin spaces before %."""
    parts = []
    for place, part in enumerate(sentence.split("`")):
        if place % 2:
            parts.append(rf"\texttt{{{breakable(part)}}}")
        else:
            prose = breakable(re.sub(r"(?<![\w.)-])-(?=\d)", "\N{MINUS SIGN}", part))
            parts.append(re.sub(r"(?<=\d) \\%", r"\\,\\%", prose))
    return "".join(parts)


def tabular(columns: str, heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    r"""A `tabular` with booktabs rules; needs `\usepackage{booktabs}`.

    Args:
        columns: how they are aligned, such as `lrr`.
        heads, rows: cells that are LaTeX already.
    """
    lines = [
        rf"\begin{{tabular}}{{{columns}}}",
        r"\toprule",
        " & ".join(heads) + r" \\",
        r"\midrule",
        *(" & ".join(row) + r" \\" for row in rows),
        r"\bottomrule",
        r"\end{tabular}",
    ]
    return "\n".join(lines) + "\n"
