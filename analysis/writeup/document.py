"""The document: a report in LaTeX that compiles as it is, and shows how a text uses its parts."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from analysis.query.latex import breakable, escaped, said
from analysis.report.build import Contents
from analysis.report.figures import ReportFigure
from analysis.writeup.tables import FIGURE
from model.record.units import counted

_HEAD = r"""% Compile with: pdflatex report && bibtex report && pdflatex report && pdflatex report
\documentclass[11pt,a4paper]{article}
\ifdefined\pdfminorversion\pdfminorversion=7 \pdfsuppresswarningpagegroup=1 \fi % as the figures are
\usepackage[T1]{fontenc}
\usepackage[utf8]{inputenc}
\usepackage{lmodern,textcomp,microtype}
\usepackage[textwidth=6.3in,textheight=9.6in]{geometry}
\usepackage{array,booktabs,longtable,graphicx,caption}
\usepackage[hidelinks]{hyperref}
\captionsetup{font=small,labelfont=bf,singlelinecheck=false} % the check fails at a long caption
\renewcommand{\textfraction}{0.05}
\renewcommand{\topfraction}{0.9}
\renewcommand{\bottomfraction}{0.9}
\emergencystretch=3em
\makeatletter\setlength{\@fptop}{0pt}\makeatother % pages of figures begin at the top
\input{numbers}
"""
_RESULTS = ("groups", "ratios", "steps", "losses", "reported")


def document(contents: Contents, tables: Collection[str], references: Sequence[str]) -> str:
    """The whole document as LaTeX.

    Args:
        tables: names of the tables that there are.
        references: keys of BibTeX; without any there is no list of them.
    """
    facts, answer = contents.facts, contents.answer
    done = sum(run["outcome"] == "completed" for run in facts.runs)
    outcomes = f"{done:,d} of {counted(len(facts.runs), 'run')} completed; only these are compared.\n"

    verdicts, before = [], ""  # each with how far it reaches, where that is not what the one before said
    for row in answer.shown:
        reach = f" \\emph{{{said(row.inference)}}}" if row.inference not in ("", before) else ""
        before = row.inference
        verdicts.append(f"{said(row.text)}{reach}")
    lists = {
        "Answer": [said(sentence.text) for sentence in answer.headline],
        "Verdicts": verdicts,
        "As expected": [said(sentence.text) for sentence in answer.expected],
        "Not expected": [said(sentence.text) for sentence in answer.unexpected],
        "What these runs do not show": [said(sentence.text) for sentence in answer.cannot_say],
    }

    paragraphs = []
    for title, items in lists.items():
        if items:
            entries = "\n".join(rf"\item {{}}{item}" for item in items)
            head = f"\\paragraph{{{title}}}\n\\begin{{itemize}}\\setlength\\itemsep{{0pt}}"
            paragraphs.append(f"{head}\n{entries}\n\\end{{itemize}}\n")

    appendix = ["setup", *contents.task.metrics, "ranking", "pairs", "backends", "correctness"]
    appendix += [name for name in tables if name.startswith(("shapes_", FIGURE))]
    pdf = rf"\hypersetup{{pdftitle={{{escaped(facts.title)}}},pdfcreator={{runner report --latex}}}}"
    parts = [
        _HEAD + pdf,
        rf"\title{{{breakable(facts.title)}}}",
        rf"\author{{Study \texttt{{{breakable(facts.study)}}}}}" + "\n\\date{}\n",
        "\\begin{document}\n\\maketitle\n",
        f"\\noindent\\textbf{{{_with_full_stop(breakable(answer.question))}}} {said(answer.ran.text)}\n",
        *paragraphs,
        "\\section{Methods}\n\\input{methods}\n",
        "\\section{Results}\n" + outcomes,
        *(f"\\input{{tables/{name}}}" for name in _RESULTS if name in tables),
        *(_figure(drawn) for drawn in contents.figures if drawn.figure),
        "\n\\clearpage",
        *(["\\bibliographystyle{plain}\n\\bibliography{references}\n"] if references else []),
        "\\clearpage\n\\appendix\n\\section{Setup and further tables}\n",
        *(f"\\input{{tables/{name}}}" for name in appendix if name in tables),
        "\\end{document}\n",
    ]
    return "\n".join(parts)


def _with_full_stop(text: str) -> str:
    return text if text.endswith((".", "?", "!")) else f"{text}."


def _figure(drawn: ReportFigure) -> str:
    caption = rf"\textbf{{{_with_full_stop(said(drawn.finding))}}} {said(drawn.caption)}"
    return "\n".join(
        (
            "\n\\begin{figure}[htbp]\n\\centering",
            rf"\includegraphics[width=\linewidth,height=0.34\textheight,keepaspectratio]{{figures/{drawn.name}}}",
            rf"\caption[{{{said(drawn.title)}}}]{{{caption}}}\label{{fig:{drawn.name.replace('_', '-')}}}",
            "\\end{figure}",
        )
    )
