"""AMD GPUs, which PyTorch's ROCm builds call `cuda` too, and what tells them from NVIDIA's.

`torch.cuda.get_device_capability` does not: it is (9, 0) on an MI250X, as on Hopper. Nothing here was tried
on an AMD GPU. Importing this module loads no torch.
"""

from __future__ import annotations

import re
from typing import Any

# Compute units by name: of MI250X, in each of the two dies that PyTorch sees as GPUs.
_UNITS = {"AMD Instinct MI250X": 110, "AMD Instinct MI300X": 304}


def version() -> str | None:
    """The HIP version that this PyTorch was built for; None if it is no ROCm build."""
    import torch

    return torch.version.hip


def architecture() -> str | None:
    """LLVM's name of the first GPU's architecture, `gfx90a` for an MI250X; None if it is not an AMD GPU."""
    import torch

    if version() is None or not torch.cuda.is_available():
        return None
    return torch.cuda.get_device_properties(0).gcnArchName.partition(":")[0]


def name(properties: Any) -> str:
    """A GPU's name as the driver gives it, and which part of one it is: owners can divide an MI300X.

    Where the driver has no list of names, it is named after its architecture.
    """
    given = properties.name or f"AMD {properties.gcnArchName.partition(':')[0]}"
    units = properties.multi_processor_count
    whole = _UNITS.get(given, units)
    return given if units == whole else f"{given}, {units} of {whole} CUs"


def uuid(properties: Any) -> str:
    """A GPU's UUID as rocminfo prints it and ROCR_VISIBLE_DEVICES takes it: `GPU-` and 16 hexadecimal digits.

    HIP puts the text of these digits where CUDA has 16 bytes. GPUs without a UUID all have `XX` there: their
    PCI address tells them apart.
    """
    text = str(properties.uuid)
    digits = bytes.fromhex(text.replace("-", "")).rstrip(b"\0").decode("latin-1")
    if re.fullmatch(r"[0-9a-fA-F]{16}", digits):
        return f"GPU-{digits.lower()}"
    if digits.strip("X"):
        return text
    place = (properties.pci_domain_id, properties.pci_bus_id, properties.pci_device_id)
    return "PCI-{:04x}:{:02x}:{:02x}".format(*place)
