"""The gate: a run trains only with a certificate that its attention backend is right, here and for its shape.

Certificates lie in ROOT/.certificates/KEY.json, by all that the result depends on: backend, code, shape,
precision, device, software. RUNNER_CERTIFICATES names a folder in which roots can share them.
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
    """A backend does not compute what it says, or not with the kernels that it says."""


def admit(backend: str, case: Case, root: Path, options: Sequence[str]) -> Certificate:
    """The certificate under which a run may train; made now where there is none.

    Args:
        options: Python's, that make a process import the run's code.

    Raises:
        Refused: the backend is wrong; the text says which checks it failed, and where the certificate is.
        Unsupported: it does not take the case after all.
        MemoryError, torch.OutOfMemoryError, RuntimeError: the backend's own, at the run's own shape.
    """
    found = _kept(root, key_of(backend, case.device, case)) or _made(Trial(backend, case), root, options)
    if found.verdict == "unsupported":
        raise Unsupported(found.reasons)
    if found.verdict != "right":
        raise Refused(refusal(found, root))
    return found


def refusal(certificate: Certificate, root: Path) -> str:
    """Why a backend is refused: the first failed check in full, the number of the others, the file."""
    first, *others = certificate.reasons
    more = f", and {len(others)} more" if others else ""
    where = root / FOLDER / f"{certificate.key}.json"
    return f"attention backend '{certificate.backend}' is wrong here: {first}{more}; see {where}"


def keep(certificate: Certificate, root: Path) -> None:
    """Write a certificate where `collect` and later runs find it."""
    for folder in _folders(root):
        folder.mkdir(parents=True, exist_ok=True)
        write(folder / f"{certificate.key}.json", certificate)


def _kept(root: Path, key: str) -> Certificate | None:
    for folder in _folders(root):
        try:
            found = read(folder / f"{key}.json", Certificate)
        except Unreadable:  # none, or torn: it is made again
            continue
        if folder != root / FOLDER:
            keep(found, root)  # the results of a root do not depend on another folder
        return found
    return None


def _made(trial: Trial, root: Path, options: Sequence[str]) -> Certificate:
    assert trial.case
    (answer,) = hold([trial], trial.case.device, options)
    if isinstance(answer, Crashed):
        if answer.signal is signal.SIGKILL:
            # Whatever did this, most likely for memory, means the run: who looks for its end finds the cause.
            os.kill(os.getpid(), signal.SIGKILL)
        raise Refused(str(answer))
    if isinstance(answer, Exception):
        raise answer
    keep(answer, root)
    return answer


def _folders(root: Path) -> list[Path]:
    shared = os.environ.get(SHARED)
    return [root / FOLDER, *([Path(shared)] if shared else [])]
