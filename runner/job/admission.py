"""Admission: a run trains only with a certificate that its backend is right on this device and shape.

Certificates are stored in ROOT/.certificates/KEY.json. The key covers everything that the result depends on:
backend, code, shape, precision, device, software. RUNNER_CERTIFICATES names a folder that roots can share.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from pathlib import Path

from model.attention import Case
from model.disk.files import Unreadable, read, write
from model.errors import AssayError, Unsupported
from model.verify.certificate import Certificate
from model.verify.identity import key_of
from runner.job.trial import Crashed, Trial, hold

FOLDER = ".certificates"
SHARED = "RUNNER_CERTIFICATES"


class Refused(AssayError):
    """A backend computes wrong results, or does not use the kernels that it declares."""


def admit(backend: str, case: Case, root: Path, options: Sequence[str]) -> Certificate:
    """Return the certificate that allows a run to train; runs the trial if there is none yet.

    Args:
        options: Python options that make a process import the run's code.

    Raises:
        Refused: the backend is wrong; the message has the first failed check and the certificate's path.
        Unsupported: the trial showed that the backend does not support the case.
        MemoryError, torch.OutOfMemoryError, RuntimeError: raised by the backend at the run's own shape.
    """
    found = _kept(root, key_of(backend, case.device, case)) or _made(Trial(backend, case), root, options)
    if found.verdict == "unsupported":
        raise Unsupported(found.reasons)
    if found.verdict != "right":
        raise Refused(refusal(found, root))
    return found


def refusal(certificate: Certificate, root: Path) -> str:
    """Why a backend is refused: the first failed check, the number of others, and the certificate's path."""
    first, *others = certificate.reasons
    more = f", and {len(others)} more" if others else ""
    where = root / FOLDER / f"{certificate.key}.json"
    return f"attention backend '{certificate.backend}' failed verification here: {first}{more}; see {where}"


def keep(certificate: Certificate, root: Path) -> None:
    """Write a certificate to where `collect` and later runs look for it."""
    for folder in _folders(root):
        folder.mkdir(parents=True, exist_ok=True)
        write(folder / f"{certificate.key}.json", certificate)


def _kept(root: Path, key: str) -> Certificate | None:
    for folder in _folders(root):
        try:
            found = read(folder / f"{key}.json", Certificate)
        except Unreadable:  # missing or incomplete: run the trial again
            continue
        if folder != root / FOLDER:
            keep(found, root)  # a root's results must not depend on another folder
        return found
    return None


def _made(trial: Trial, root: Path, options: Sequence[str]) -> Certificate:
    assert trial.case
    (answer,) = hold([trial], trial.case.device, options)
    if isinstance(answer, Crashed):
        if answer.signal is signal.SIGKILL:
            # Most likely the OOM killer. Die the same way, so that the run's outcome shows the cause.
            os.kill(os.getpid(), signal.SIGKILL)
        raise Refused(str(answer))
    if isinstance(answer, Exception):
        raise answer
    keep(answer, root)
    return answer


def _folders(root: Path) -> list[Path]:
    shared = os.environ.get(SHARED)
    return [root / FOLDER, *([Path(shared)] if shared else [])]
