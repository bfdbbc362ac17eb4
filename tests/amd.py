"""A stand-in for PyTorch's ROCm build on a machine with eight AMD GPUs: what it says, without any GPU."""

from types import SimpleNamespace

import torch

NAMES = {
    "gfx90a": "AMD Instinct MI250X",
    "gfx942": "AMD Instinct MI300X",
    "gfx1100": "AMD Radeon RX 7900 XTX",
}
CAPABILITIES = {"gfx90a": (9, 0), "gfx942": (9, 4), "gfx1100": (11, 0)}
UNITS = {"gfx90a": 110, "gfx942": 304, "gfx1100": 96}


def stand_in(monkeypatch, architecture: str = "gfx90a", **changes) -> None:
    """As torch 2.9 for ROCm 6.4 would answer; `changes` are of the GPU's properties."""
    properties = SimpleNamespace(
        name=NAMES[architecture],
        gcnArchName=f"{architecture}:sramecc+:xnack-",
        multi_processor_count=UNITS[architecture],
        uuid="36346236-3430-3832-3731-656231353362",  # HIP's: the text 64b6408271eb153b, where CUDA has bytes
        pci_domain_id=0,
        pci_bus_id=0xC1,
        pci_device_id=0,
    )
    properties.__dict__.update(changes)
    monkeypatch.setattr(torch, "__version__", "2.9.1+rocm6.4")
    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setattr(torch.version, "hip", "6.4.43484-123eb5128")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda *_: properties.name)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: CAPABILITIES[architecture])
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda *_: properties)
