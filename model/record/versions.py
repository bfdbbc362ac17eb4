"""What needs which release of torch or triton, and why; no other file compares their versions.

Versions are read from the metadata of installed packages, so nothing is imported. Only the release counts:
2.11.0a0+nv26.2, as in NVIDIA's containers, is taken for 2.11. `rocm` is about builds for AMD GPUs.
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import NamedTuple

from packaging.version import InvalidVersion, Version


class Need(NamedTuple):
    """The releases of a package that have what a feature needs.

    Attributes:
        oldest, newest: major and minor number of the first and last that do; newest "": no limit is known.
        why: why the first is not older, as the end of a sentence about an installed one.
        why_newest: why the last is not newer, as the end of such a sentence.
    """

    package: str
    oldest: str
    why: str
    newest: str = ""
    why_newest: str = ""

    @property
    def releases(self) -> str:
        """Them in words."""
        return f"{self.package} {self.oldest} {f'to {self.newest}' if self.newest else 'or later'}"


_UNTRIED = "with which its kernels were never tried"
# By `torch`, which every run needs, `attention=BACKEND`, or the setting that asks for it (and its value).
NEEDS: dict[str, Need] = {
    # pyproject.toml has the same bound. 2.7 also refuses the socket at which the processes of a run meet.
    "torch": Need("torch", "2.9", "whose FlashAttention on a CPU takes no grouped heads"),
    "attention=custom": Need(
        "triton", "3.6", "whose Gluon lacks what the kernel uses", "3.8", "whose Gluon has other names for it"
    ),
    "attention=flash1": Need("triton", "3.6", _UNTRIED),
    "attention=portable": Need("triton", "3.6", _UNTRIED),
    "train.optimizer=adamw_one_pass": Need("triton", "3.6", _UNTRIED),
    "train.float8": Need("torch", "2.11", "for which torchao 0.18 is not made"),
    "train.loss=linear_cross_entropy": Need("triton", "3.6", _UNTRIED),
}
_ALSO = {"triton": ("triton", "pytorch-triton", "pytorch-triton-rocm")}  # as nightly builds name theirs


def lacking(feature: str) -> list[str]:
    """Why the installed release lacks a feature of `NEEDS`: one reason, or none.

    A package that is missing is no reason: whatever imports it says how to install it. Nor is a version
    that follows no standard.
    """
    need = NEEDS[feature]
    text = installed(need.package)
    if text is None:
        return []
    try:
        release = Version(text).release[:2]
    except InvalidVersion:
        return []
    if release < Version(need.oldest).release:
        why = need.why
    elif need.newest and release > Version(need.newest).release:
        why = need.why_newest
    else:
        return []
    return [f"needs {need.releases}, not {text}, {why}: install {need.releases}"]


def installed(package: str) -> str | None:
    """The version of an installed package; None if it is missing."""
    for name in _ALSO.get(package, (package,)):
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return None
