"""What the profiler saw of a GPU, added up: nothing of the host, and nothing twice."""

from types import SimpleNamespace

from torch._C._autograd import DeviceType

from model.measure.profiler import seconds_on_gpu


def event(kind: DeviceType, microseconds: float, **attributes: bool) -> SimpleNamespace:
    time_range = SimpleNamespace(elapsed_us=lambda: microseconds)
    return SimpleNamespace(device_type=kind, time_range=time_range, **attributes)


def test_the_gpus_kernels_count_once_and_neither_the_host_nor_a_named_region_does() -> None:
    events = [
        event(DeviceType.CUDA, 250.0, is_user_annotation=False),
        event(DeviceType.CUDA, 50.0),
        event(DeviceType.CUDA, 300.0, is_user_annotation=True),
        event(DeviceType.CPU, 700.0),
    ]
    assert seconds_on_gpu(events) == 300e-6
    assert seconds_on_gpu(events[2:]) == 0
