"""A driver for GPUs that are not here: kernels are compiled for the target, checked against its limits, and not run.

With it the product's own functions launch, on CPU tensors, exactly what they would launch on such a GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

from triton.backends.compiler import GPUTarget
from triton.backends.driver import DriverBase
from triton.runtime import driver


class Gpu(NamedTuple):
    target: GPUTarget
    multiprocessors: int
    shared_bytes: int


GPUS = {
    "sm_80": Gpu(GPUTarget("cuda", 80, 32), 108, 166_912),
    "sm_90": Gpu(GPUTarget("cuda", 90, 32), 132, 232_448),
    "gfx942": Gpu(GPUTarget("hip", "gfx942", 64), 304, 65_536),
    "gfx950": Gpu(GPUTarget("hip", "gfx950", 64), 256, 163_840),
}


class Compiled(NamedTuple):
    name: str
    binary: bytes
    warps: int
    shared_bytes: int
    starts_early: bool


class FakeDriver(DriverBase):
    def __init__(self, gpu: Gpu) -> None:
        super().__init__()
        self._gpu = gpu
        self.compiled: list[Compiled] = []
        properties = {"max_shared_mem": gpu.shared_bytes, "multiprocessor_count": gpu.multiprocessors}
        self.utils = SimpleNamespace(get_device_properties=lambda _: properties, load_binary=self._load)

    @classmethod
    def is_active(cls) -> bool:
        return True

    def map_python_to_cpp_type(self, ty: str) -> str:
        return ty

    def get_current_target(self) -> GPUTarget:
        return self._gpu.target

    def get_active_torch_device(self) -> Any:
        raise NotImplementedError

    def get_benchmarker(self) -> Any:
        raise NotImplementedError

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, _: int) -> int:
        return 0

    def launcher_cls(self, _source: Any, metadata: Any) -> Callable[..., None]:
        self._metadata = metadata
        return lambda *_: None

    def _load(self, name: str, binary: bytes, shared: int, _device: int) -> tuple[Any, ...]:
        early = getattr(self._metadata, "launch_pdl", False)
        self.compiled.append(Compiled(name, binary, self._metadata.num_warps, shared, early))
        return None, None, 0, 0, 1024


def install(name: str, kind: type[FakeDriver] = FakeDriver) -> FakeDriver:
    """For the rest of this process."""
    fake = kind(GPUS[name])
    driver.set_active(fake)
    return fake
