"""Test the attention backends: whether each is correct, and which kernels really run.

Examples:
  runner verify
  runner verify --backend flash --backend tiled --device cpu
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer

import model
from model import attention
from model.attention.verify.certificate import Certificate
from model.record import backends
from model.record.errors import UserError, one_line
from runner.commands._console import print_json, say, table
from runner.commands._options import AsJson, Replace, Settings, refuse_file_name
from runner.job import admission
from runner.job.phase import Stage
from runner.job.trial import Crashed, TooLong, Trial, TrialOptions, run_trials
from runner.state.code import repository
from runner.state.endings import ending_of_exception
from runner.state.filesystem import require_writable

GRADIENTS = ("o", "dq", "dk", "dv")
LINE = 79  # no longer than a terminal's line, which the next stage overwrites


def command(
    backend: Annotated[
        list[str] | None, typer.Option("--backend", "-b", help="Only this backend; repeatable.")
    ] = None,
    device: Annotated[
        Literal["cuda", "cpu"] | None, typer.Option(help="Device to test on [default: cuda if available].")
    ] = None,
    report: Annotated[
        Path | None,
        typer.Option(
            "--report",
            metavar="DIR",
            help="Also write a report page of the results.",
            callback=refuse_file_name,
        ),
    ] = None,
    replace: Replace = False,
    as_json: AsJson = False,
) -> None:
    if report:
        require_writable(report, "--report")
    for name in backend or ():  # before any import that takes seconds
        backends.check_name(name)
    names = list(dict.fromkeys(backend or ()))
    for name in () if backend else backends.names():  # without packages that cannot be imported
        try:
            attention.load(name)
            names.append(name)
        except UserError as error:
            say(str(error))
    if device is None:
        import torch

        device = "cuda" if torch.cuda.is_available() else "cpu"
    from analysis.report.build import certificates_page
    from analysis.store.collect import collect_certificates

    root = Settings.root
    certificates = verify(names, device, root)
    collect_certificates(root)
    if report:
        say(f"{certificates_page(root, report, replace)}")
    if as_json:
        print_json([certificate.model_dump(mode="json") for certificate in certificates])
    else:
        show(certificates)
    broken = not backend and len(names) < len(backends.names())
    untold = len(certificates) < len(names)
    wrong = any(certificate.verdict == "wrong" for certificate in certificates)
    raise typer.Exit(1 if broken or untold or wrong else 0)


def verify(names: Sequence[str], device: str, root: Path) -> list[Certificate]:
    """Certify all cases that these backends support on a device, and store the certificates under the root.

    A backend whose trial was too slow, or ran out of memory, gets no certificate: that says nothing about it.

    Raises:
        UserError: no such backend.
    """
    # Lanes of backends, a process each: one that compiles has its own, and the others share two.
    slow = [name for name in names if attention.load(name).compiles]
    rest = [name for name in names if name not in slow]
    lanes = [lane for lane in (*([name] for name in slow), rest[::2], rest[1::2]) if lane]
    progress = _Progress(len(names))
    options = TrialOptions(side_by_side=len(lanes), tell=progress.stage)

    def certify(lane: Sequence[str]) -> list[Certificate]:
        """Run a lane's trials, and keep their certificates, also those of backends that raised."""
        origin, kept = checkout(), []
        answers = run_trials([Trial(name) for name in lane], device, options)
        for name, answer in zip(lane, answers, strict=True):
            if isinstance(answer, Exception):
                if isinstance(answer, Crashed):
                    lacked = answer.signal is signal.SIGKILL  # most likely by the OOM killer
                else:
                    lacked = isinstance(answer, TooLong) or ending_of_exception(answer).outcome.out_of_memory
                if lacked:  # time or memory, which says nothing about the backend
                    progress.end(f"{name}: no verdict: {one_line(answer)}")
                    continue
                from model.training.certify import without_trial  # imports torch

                certificate = without_trial(name, device, f"{type(answer).__name__}: {answer}")
            else:
                certificate = answer
            certificate = certificate.model_copy(update=origin)
            admission.keep(certificate, root)
            progress.end(f"{name}: {certificate.verdict}, {certificate.seconds:.1f} s")
            kept.append(certificate)
        return kept

    with ThreadPoolExecutor(len(lanes)) as pool:
        try:
            unordered = [certificate for kept in pool.map(certify, lanes) for certificate in kept]
        except BaseException:
            options.end()  # Ctrl-C: the lanes wait for their trials, and the pool for its lanes
            raise
    return sorted(unordered, key=lambda certificate: names.index(certificate.backend))


@dataclass
class _Progress:
    """Shows progress: each stage on a terminal, in one line; otherwise each backend as it ends."""

    total: int
    ended: int = 0

    def stage(self, stage: Stage) -> None:
        if sys.stderr.isatty():
            sys.stderr.write(f"\r\x1b[K{f'[{self.ended + 1}/{self.total}] {stage}'[:LINE]}")
            sys.stderr.flush()

    def end(self, text: str) -> None:
        self.ended += 1
        start = "\r\x1b[K" if sys.stderr.isatty() else ""
        say(f"{start}[{self.ended}/{self.total}] {text}")


def checkout() -> dict[str, str | bool | None]:
    """The commit of the code that verifies, by the fields of a certificate."""
    state = repository.state(Path(model.__path__[0]).parent)
    return {"git_sha": state.commit, "git_dirty": state.dirty}


def show(certificates: Sequence[Certificate]) -> None:
    """Print a row per backend with its largest errors; reasons go to standard error.

    Errors are those of output and gradients, relative, and the largest as a share of its tolerance.
    """
    rows = []
    for certificate in certificates:
        names = dict.fromkeys(name for seen in certificate.kernels.values() for name in seen)
        kernels = [name if len(name) < 60 else f"{name[:57]}..." for name in names]
        more = f" and {len(kernels) - 2} more" if len(kernels) > 2 else ""
        # Relative errors are those of plain data only: they are meaningless where results cancel.
        checks = certificate.checks
        largest = []
        for gradient in GRADIENTS:
            plain = [
                check for check in checks if check.what == gradient and check.variant.startswith("plain")
            ]
            errors = [check.relative_error for check in plain if check.relative_error is not None]
            largest.append(f"{max(errors):.1e}" if errors else "")
        shares = [
            check.measured / check.tolerance
            for check in checks
            if check.measured is not None and check.tolerance
        ]
        shapes = {check.case for check in checks}  # those with Q are of parts of sequences
        rows.append([
            certificate.backend,
            certificate.verdict,
            *largest,
            f"{max(shares):.0%}" if shares else "",
            str(len(checks) or ""),
            _yes(certificate.deterministic),
            # `--json` and reports give the reason where torch.compile keeps a call in several graphs.
            "" if certificate.graph_break is None else _yes(not certificate.graph_break),
            _yes(any(" Q" in shape and "causal" in shape for shape in shapes) if shapes else None),
            f"{', '.join(kernels[:2])}{more}",
        ])  # fmt: skip
    table(
        [
            *("backend", "verdict", *GRADIENTS, "of tolerance", "checks", "deterministic", "one graph"),
            *("parallel.context", "kernels"),
        ],
        rows,
    )
    for certificate in certificates:
        for reason in certificate.reasons:
            say(f"{certificate.backend} is {certificate.verdict}: {reason}")


def _yes(answer: bool | None) -> str:
    return "" if answer is None else "yes" if answer else "no"
