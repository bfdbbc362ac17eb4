"""Admission: a run trains only with a certificate that its backend is right on this device and shape.

Certificates are stored in ROOT/.certificates/KEY.json. The key covers everything that the result depends on:
backend, code, shape, precision, device, software. Certificates of right backends are also kept in the user's
cache, so that other roots need no trial of their own; RUNNER_CERTIFICATES names another folder for that.
"""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from model.attention.verify.certificate import Certificate
from model.attention.verify.identity import key_of
from model.record.case import Case
from model.record.errors import AssayError, Unsupported
from model.record.files import Unreadable, read, user_folder, write
from runner.job.phase import Stage, Tell
from runner.job.trial import LIMIT_SECONDS, Crashed, Trial, TrialOptions, run_trials
from runner.job.turns import turn

FOLDER = ".certificates"
SHARED = "RUNNER_CERTIFICATES"
log = logging.getLogger(__name__)


class BackendRefused(AssayError):
    """A backend computes wrong results, or does not use the kernels that it declares.

    Attributes:
        certificate: the certificate that says so; None if its trial crashed.
    """

    def __init__(self, text: str, certificate: Certificate | None = None) -> None:
        self.certificate = certificate
        super().__init__(text)


class Killed(AssayError):
    """A backend's trial was killed: most likely by the OOM killer."""


def admit(
    backend: str,
    case: Case,
    root: Path,
    options: Sequence[str],
    tell: Tell = lambda _: None,
) -> Certificate:
    """Return the certificate that allows a run to train; runs the trial if there is none yet.

    If the trial was killed, so is this process: the run's outcome then shows it, as if the OOM killer had
    ended the run itself.

    Args:
        options: Python options that make a process import the run's code.
        tell: receives what is being done.

    Raises:
        BackendRefused: it is wrong; the message has the first failed check and the certificate's path.
        TooLong: the trial did not end in time.
        Unsupported: the trial showed that the backend does not support the case.
        MemoryError, torch.OutOfMemoryError, RuntimeError: raised by the backend at the run's own shape.
    """
    answer = admit_each({backend: case}, root, options, tell)[backend]
    if isinstance(answer, Killed):
        os.kill(os.getpid(), signal.SIGKILL)
    if isinstance(answer, Exception):
        raise answer
    return answer


def admit_each(
    asked: Mapping[str, Case], root: Path, options: Sequence[str], tell: Tell
) -> dict[str, Certificate | Exception]:
    """Admit several backends, each to a case on one device; returns a certificate or an error for each.

    One process holds all trials, and runs that lack the same certificates wait for the first of them.
    """
    keys = {backend: key_of(backend, case.device, case) for backend, case in asked.items()}
    admitted: dict[str, Certificate | Exception] = {}
    with _after_others({name: key for name, key in keys.items() if _stored(root, key) is None}, root, tell):
        lacking = [Trial(name, asked[name]) for name, key in keys.items() if _stored(root, key) is None]
        device = next((case.device for case in asked.values()), "")
        answers = run_trials(lacking, device, TrialOptions(options, tell=tell)) if lacking else ()
        answered = {trial.backend: answer for trial, answer in zip(lacking, answers, strict=True)}
        for backend, key in keys.items():
            try:
                answer: Certificate | Exception | None = _stored(root, key)
                if answer is None:
                    answer = answered[backend]
                    if isinstance(answer, Certificate):
                        keep(answer, root)
                # A run trains with the certificate of a right backend alone.
                if isinstance(answer, Crashed):
                    killed = answer.signal is signal.SIGKILL
                    answer = Killed(str(answer)) if killed else BackendRefused(str(answer))
                elif isinstance(answer, Certificate) and answer.verdict == "unsupported":
                    answer = Unsupported(answer.reasons)
                elif isinstance(answer, Certificate) and answer.verdict == "wrong":
                    answer = BackendRefused(refusal(answer, root), answer)
                admitted[backend] = answer
            except Exception as error:
                admitted[backend] = error
    return admitted


@contextmanager
def _after_others(lacking: Mapping[str, str], root: Path, tell: Tell) -> Iterator[None]:
    """Wait for a run that is making one of these certificates.

    Args:
        lacking: their keys by backend; if empty, there is nothing to wait for.
    """
    if not lacking:
        yield
        return
    backend, key = next(iter(lacking.items()))
    what = "waiting for another run to make its certificate"
    waiting = partial(tell, Stage(backend=backend, begun=0, total=0, what=what))
    with turn(root / FOLDER / f"{key}.lock", LIMIT_SECONDS, waiting) as own_turn:
        try:
            yield
        except Exception:  # not where this run is stopped: then the next one takes its turn
            if own_turn:
                own_turn.done(made=False)
            raise
        if own_turn:
            own_turn.done(made=_stored(root, key) is not None)


def refusal(certificate: Certificate, root: Path) -> str:
    """Why a backend is refused: the first failed check, the number of others, and the certificate's path."""
    first, *others = certificate.reasons
    more = f", and {len(others)} more" if others else ""
    where = root / FOLDER / f"{certificate.key}.json"
    return f"attention backend '{certificate.backend}' failed verification here: {first}{more}; see {where}"


def keep(certificate: Certificate, root: Path) -> None:
    """Write a certificate to where `collect` and later runs look for it.

    Only certificates of right backends go to the cache, so that no old refusal is found after a backend or a
    machine was repaired. If the cache cannot be written, nothing is lost.
    """
    name = f"{certificate.key}.json"
    try:
        (root / FOLDER).mkdir(parents=True, exist_ok=True)
        write(root / FOLDER / name, certificate)
    except PermissionError as error:  # another user of this root made it
        log.warning(
            "%s: %s; the database will not show this certificate", root / FOLDER / name, error.strerror
        )
    if certificate.verdict == "right":
        with suppress(OSError):
            cache().mkdir(mode=0o700, parents=True, exist_ok=True)
            write(cache() / name, certificate)


def _stored(root: Path, key: str) -> Certificate | None:
    """The certificate of this key in the root, or in the cache, from which it is then copied."""
    folders = [root / FOLDER]
    with suppress(OSError):
        folders.append(cache())
    for folder in folders:
        path = folder / f"{key}.json"
        try:
            certificate = read(path, Certificate)
        except Unreadable:  # missing or incomplete: run the trial again
            continue
        if certificate.key != key:  # a copy under another name
            continue
        if folder != root / FOLDER:
            keep(certificate, root)  # a root's results must not depend on another folder
        # Another user of the root may have forged one there; the superuser's are trusted.
        elif path.stat().st_uid not in (os.geteuid(), 0):
            continue
        return certificate
    return None


def cache() -> Path:
    """The folder in which the roots of a user, or of all who name that folder, share certificates.

    Raises:
        OSError: the user has no home.
    """
    if shared := os.environ.get(SHARED):
        return Path(shared)
    return user_folder("cache") / "certificates"
