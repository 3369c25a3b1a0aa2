"""Gluon kernels on a CPU, for which Triton's interpreter has nothing: their Python code over torch tensors.

Warps of one kind are a thread, a program and its neighbour run at the same time, and barriers wait as on the device:
what would stand still there fails here, and reads or writes outside of a buffer do. Layouts mean nothing, and copies
are there at once: whether a program waits for a copy is known only as far as it waits for its barrier.
"""

from __future__ import annotations

import operator
import threading
from collections.abc import Callable, Sequence
from types import FunctionType, ModuleType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from triton.experimental.gluon import language as gl
from triton.experimental.gluon._runtime import GluonJITFunction
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor
from triton.language import constexpr

_WAIT_S = 60.0
_TYPES = {
    gl.int32: torch.int32, gl.int64: torch.int64, gl.uint8: torch.uint8, gl.float32: torch.float32,
    gl.bfloat16: torch.bfloat16, gl.float8e4nv: torch.float8_e4m3fn,
}  # fmt: skip
_NAMES = {theirs: ours for ours, theirs in _TYPES.items()}


def run(
    kernel: GluonJITFunction[Any],
    programs: int,
    *arguments: Any,
    neighbours: int = 2,
    across: int = 1,
    **constants: Any,
) -> None:
    """Programs in groups of so many neighbours that run at the same time; `across`: as many each at a second axis."""
    faults: list[Exception] = []
    function = FunctionType(kernel.fn.__code__, _on_cpu(kernel.fn.__globals__), kernel.fn.__name__)
    values = [_argument(one) for one in arguments]
    for first in range(0, programs * across, neighbours):
        group = range(first, min(first + neighbours, programs * across))
        _together([(function, tuple(values), constants, _Program(number, programs, faults)) for number in group])
        if faults:
            raise faults[0]


class _Program:
    def __init__(self, number: int, programs: int, faults: list[Exception]) -> None:
        self.place = number % programs, number // programs
        self.programs, self.faults = programs, faults


class _Thread(threading.Thread):
    """Warps of one kind, of one program."""

    program: _Program


def _program() -> _Program:
    thread = threading.current_thread()
    assert isinstance(thread, _Thread)
    return thread.program


def _together(calls: Sequence[tuple[Callable[..., None], tuple[Any, ...], dict[str, Any], _Program]]) -> None:
    def body(function: Callable[..., None], arguments: tuple[Any, ...], constants: dict[str, Any]) -> None:
        try:
            function(*arguments, **constants)
        except Exception as fault:  # noqa: BLE001 whatever it is, the test is to fail of it
            _program().faults.append(fault)

    threads = []
    for function, arguments, constants, program in calls:
        threads.append(_Thread(target=body, args=(function, arguments, constants), daemon=True))
        threads[-1].program = program
        threads[-1].start()
    for thread in threads:
        thread.join()


def _raw(value: Any) -> Any:
    return value.data if isinstance(value, _Value) else value


class _Value:
    """A tensor or scalar in registers."""

    def __init__(self, data: Tensor) -> None:
        self.data = data

    @classmethod
    def of(cls, value: Any) -> Any:
        return cls(torch.tensor(value, dtype=torch.int32)) if type(value) is int else value

    def __getitem__(self, index: Any) -> _Value:
        return _Value(self.data[index])

    def __index__(self) -> int:
        return int(self.data)

    def __bool__(self) -> bool:
        return bool(self.data)

    def __neg__(self) -> _Value:
        return _Value(-self.data)

    def to(self, dtype: Any, bitcast: bool = False) -> _Value:
        return _Value(self.data.contiguous().view(_TYPES[dtype]) if bitcast else self.data.to(_TYPES[dtype]))


def _towards_zero(a: Any, b: Any) -> Tensor:
    return torch.div(torch.as_tensor(a), torch.as_tensor(b), rounding_mode="trunc")


def _remainder(a: Any, b: Any) -> Tensor:
    return torch.as_tensor(a) - _towards_zero(a, b) * b


def _define(name: str, function: Callable[[Any, Any], Any]) -> None:
    def forwards(a: _Value, b: Any) -> Any:
        return NotImplemented if isinstance(b, _Pointer) else _Value(function(a.data, _raw(b)))

    def backwards(a: _Value, b: Any) -> _Value:
        return _Value(function(torch.as_tensor(_raw(b)), a.data))

    setattr(_Value, f"__{name}__", forwards)
    setattr(_Value, f"__r{name}__", backwards)


for _name in "add sub mul truediv lshift rshift and_ or_ xor lt gt ge le eq ne".split():
    _define(_name.rstrip("_"), getattr(operator, _name))
_define("floordiv", _towards_zero)
_define("mod", _remainder)


class _Pointer:
    """Into the whole buffer that a tensor is a part of, from the tensor's beginning on."""

    def __init__(self, buffer: Tensor, offset: Tensor) -> None:
        self.buffer, self.offset = buffer, offset
        self.dtype = SimpleNamespace(element_ty=_NAMES[buffer.dtype])

    @classmethod
    def to(cls, tensor: Tensor) -> _Pointer:
        storage = tensor.untyped_storage()
        count = storage.nbytes() // tensor.itemsize - tensor.storage_offset()
        return cls(tensor.as_strided((count,), (1,)), torch.tensor(0))

    def __add__(self, more: Any) -> _Pointer:
        return _Pointer(self.buffer, self.offset + torch.as_tensor(_raw(more)).long())

    def __getitem__(self, index: Any) -> _Pointer:
        return _Pointer(self.buffer, self.offset[index])

    def places(self, mask: Any, shape: torch.Size) -> tuple[Tensor, Tensor]:
        real = torch.broadcast_to(torch.as_tensor(True if mask is None else _raw(mask)), shape)
        places = torch.where(real, self.offset.expand(shape), 0)
        assert ((places >= 0) & (places < len(self.buffer))).all(), "outside of the buffer"
        return places, real


_MEMORY = threading.Lock()


def _load(pointer: _Pointer, mask: Any = None, other: Any = 0, **_: Any) -> _Value:
    shape = torch.broadcast_shapes(pointer.offset.shape, () if mask is None else _raw(mask).shape)
    places, real = pointer.places(mask, shape)
    with _MEMORY:
        found = pointer.buffer[places]
    return _Value(torch.where(real, found, torch.tensor(other).to(found.dtype)))


def _store(pointer: _Pointer, value: Any, mask: Any = None) -> None:
    data = torch.as_tensor(_raw(value)).to(pointer.buffer.dtype)
    shape = torch.broadcast_shapes(pointer.offset.shape, data.shape)
    places, real = pointer.places(mask, shape)
    with _MEMORY:
        pointer.buffer[places[real]] = data.expand(shape)[real]


class _Descriptor:
    """Of rows that are copied in blocks, with zeros beyond the last."""

    def __init__(self, of: TensorDescriptor) -> None:
        self.rows, self.layout, self.dtype = of.base, of.layout, _NAMES[of.base.dtype]
        height, width = of.block_shape
        self.block_type = SimpleNamespace(shape=(height, width), nbytes=height * width * of.base.itemsize)

    def block(self, row: int, column: int) -> Tensor:
        height, width = self.block_type.shape
        found = self.rows[row : row + height, column : column + width].contiguous()
        out = torch.zeros(height, width, dtype=found.dtype)
        out[: found.shape[0], : found.shape[1]] = found
        return out


class _Shared:
    """Shared memory, NaN until something is written."""

    def __init__(self, data: Any) -> None:
        self.data = data

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.data), 1) if isinstance(self.data, list) else tuple(self.data.shape)

    @property
    def dtype(self) -> Any:
        return _NAMES[self.data.dtype]

    def index(self, number: Any) -> Any:
        return self.data[int(number)] if isinstance(self.data, list) else _Shared(self.data[int(number)])

    def permute(self, order: Sequence[int]) -> _Shared:
        return _Shared(self.data.permute(*order))

    def slice(self, start: int, length: int, dim: int) -> _Shared:
        return _Shared(self.data.narrow(dim, start, length))

    def store(self, value: _Value) -> None:
        self.data.copy_(value.data.expand(self.data.shape))

    def load(self, _layout: Any) -> _Value:
        return _Value(self.data.clone())


class _Barrier:
    def __init__(self) -> None:
        self.count = self.left = self.phase = self.expected = 0
        self.changed = threading.Condition()

    def init(self, count: int) -> None:
        self.count = self.left = count

    def expect(self, num_bytes: int, wanted: Any = True) -> None:
        if wanted:
            self.arrive(1, num_bytes)

    def arrive(self, count: int = 1, num_bytes: int = 0) -> None:
        """num_bytes: that are to come, or less than none that came."""
        with self.changed:
            self.left -= count
            self.expected += num_bytes
            assert self.left >= 0, "more arrivals than a phase has"
            assert self.expected >= 0, "more bytes than were expected"
            if self.left == 0 and self.expected == 0:
                self.left, self.phase = self.count, 1 - self.phase
                self.changed.notify_all()

    def wait(self, phase: Any) -> None:
        with self.changed:
            # Whoever waits when another has failed would wait for ever.
            for _ in range(int(_WAIT_S * 10)):
                if self.changed.wait_for(lambda: self.phase != int(phase), timeout=0.1) or _program().faults:
                    break
            assert self.phase != int(phase), "the warps wait for one another"


def _allocate(dtype: Any, shape: Sequence[int], layout: Any) -> _Shared:
    if layout == "barriers":
        return _Shared([_Barrier() for _ in range(shape[0])])
    ours = _TYPES[dtype]
    return _Shared(torch.full(list(shape), float("nan") if ours.is_floating_point else -1, dtype=ours))


def _multiply(a: Any, b: _Shared, sums: _Value, use_acc: bool = True, **_: Any) -> _Value:
    product = a.data.float() @ b.data.float()
    return _Value(product + sums.data if use_acc else product)


def _await_message(message: _Value, theirs: _Pointer, pair: _Value, turn: Any) -> _Value:
    while bool((((message ^ turn) & 15) != 0).data.any()):
        assert not _program().faults, "the neighbour has failed"
        message = _load(theirs + pair)
    return message


def _argument(value: Any) -> Any:
    if isinstance(value, TensorDescriptor):
        return _Descriptor(value)
    return _Pointer.to(value) if isinstance(value, Tensor) else _Value.of(value)


def _copy_block(source: _Descriptor, place: Sequence[Any], barrier: _Barrier, to: _Shared, wanted: Any = True) -> None:
    if wanted:
        row, column = map(int, place)
        to.data.copy_(source.block(row, column))
        barrier.arrive(0, -source.block_type.nbytes)


def _copy(to: _Shared, source: _Pointer, mask: Any = None) -> None:
    to.store(_load(source, mask))


def _specialise(calls: Sequence[tuple[Any, tuple[Any, ...]]], _warps: Any, _registers: Any) -> None:
    _together([(function, arguments, {}, _program()) for function, arguments in calls])


def _both(function: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Any, Any], _Value]:
    return lambda a, b: _Value(function(torch.as_tensor(_raw(a)), torch.as_tensor(_raw(b))))


def _nothing(*_: Any, **__: Any) -> None:
    return None


def _same(value: Any, *_: Any) -> Any:
    return value


_LANGUAGE = SimpleNamespace(
    int32=gl.int32, int64=gl.int64, float32=gl.float32, float8e4nv=gl.float8e4nv,
    uint8=gl.uint8, bfloat16=gl.bfloat16, convert_layout=_same, multiple_of=_same, static_range=range,
    to_tensor=_Value.of, num_warps=lambda: 8, cdiv=lambda a, b: (a + b - 1) // b,
    program_id=lambda axis: _Value(torch.tensor(_program().place[axis], dtype=torch.int32)),
    num_programs=lambda _: _Value(torch.tensor(_program().programs, dtype=torch.int32)),
    arange=lambda first, end, _: _Value(torch.arange(first, end, dtype=torch.int32)),
    full=lambda shape, value, dtype, _: _Value(torch.full(shape, value, dtype=_TYPES[dtype])),
    zeros=lambda shape, dtype, _: _Value(torch.zeros(shape, dtype=_TYPES[dtype])),
    load=_load, store=_store, maximum=_both(torch.maximum), minimum=_both(torch.minimum),
    where=lambda c, a, b: _Value(torch.where(_raw(c), torch.as_tensor(_raw(a)), torch.as_tensor(_raw(b)))),
    max=lambda x, axis: _Value(x.data.amax(axis)), sum=lambda x, axis: _Value(x.data.sum(axis)),
    exp=lambda x: _Value(torch.exp(x.data)), abs=lambda x: _Value(x.data.abs()), div_rn=_both(torch.div),
    broadcast=lambda a, b: tuple(map(_Value, torch.broadcast_tensors(a.data, b.data))), DotOperandLayout=_nothing,
    exp2=lambda x: _Value(torch.exp2(x.data)), log2=lambda x: _Value(torch.log2(x.data)),
    allocate_shared_memory=_allocate, warp_specialize=_specialise,
    BlockedLayout=_nothing, SliceLayout=_nothing, NVMMADistributedLayout=_nothing, NVMMASharedLayout=_nothing,
    SwizzledSharedLayout=_nothing,
)  # fmt: skip
_PARTS: dict[str, Any] = {
    "gl": _LANGUAGE,
    "meet": _nothing,
    "wait_for_earlier": _nothing,
    "await_message": _await_message,
    "fence_async_shared": _nothing,
    "warpgroup_mma": _multiply,
    "warpgroup_mma_init": _same,
    "warpgroup_mma_wait": lambda _, values: values[0] if len(values) == 1 else values,
    "async_copy": SimpleNamespace(
        async_copy_global_to_shared=_copy,
        commit_group=_nothing,
        wait_group=_nothing,
        mbarrier_arrive=lambda barrier, **_: barrier.arrive(128),  # each thread of four warps
    ),
    "tma": SimpleNamespace(async_copy_global_to_shared=_copy_block),
    "mbarrier": SimpleNamespace(
        expect=lambda barrier, num_bytes, wanted=True: barrier.expect(num_bytes, wanted),
        MBarrierLayout=lambda: "barriers",
        init=lambda barrier, count: barrier.init(count),
        wait=lambda barrier, phase: barrier.wait(phase),
        arrive=lambda barrier, count: barrier.arrive(count),
    ),
}


def _on_cpu(module: dict[str, Any]) -> dict[str, Any]:
    """A kernel module's names, with its functions over torch and everything of Gluon's replaced."""
    names: dict[str, Any] = {}
    for name, value in module.items():
        if name in _PARTS:
            names[name] = _PARTS[name]
        elif isinstance(value, GluonJITFunction):
            own = names if value.fn.__globals__ is module else _on_cpu(value.fn.__globals__)
            names[name] = FunctionType(value.fn.__code__, own, name, value.fn.__defaults__)
        elif isinstance(value, constexpr):
            names[name] = value.value
        elif not isinstance(value, ModuleType):
            names[name] = value
    return names
