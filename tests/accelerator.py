"""An accelerator for machines without one: tensors that say they are on ``cuda:0`` and compute on the CPU.

Inside `Accelerator`, whatever would synchronise with the device is refused, unless it stands in `allowed()`: reading a
value, data-dependent shapes, blocking copies in either direction. An asynchronous copy to the host arrives only when
something synchronises; until then its destination holds garbage.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

DEVICE = torch.device("cuda:0")
# Their shapes depend on values. (What returns a number instead of a tensor is known by that.)
DATA_DEPENDENT = {
    "_unique",
    "_unique2",
    "argwhere",
    "bincount",
    "isin",  # by sorting, which drops repeats
    "masked_select",
    "nonzero",
    "nonzero_numpy",
    "unique_consecutive",
    "unique_dim",
    "unique_dim_consecutive",
}


class SynchronisationError(RuntimeError):
    """The host would have had to wait for the device."""


class DeviceTensor(Tensor):
    """A tensor that says it is on the accelerator; ``held`` has the values.

    Torch itself takes it for one on the meta device: where it is built without CUDA, it can't even index such a tensor.
    """

    held: Tensor
    device = DEVICE
    is_cuda = True
    is_meta = False

    @staticmethod
    def __new__(cls, held: Tensor) -> DeviceTensor:
        tensor = Tensor._make_wrapper_subclass(
            cls,
            held.shape,
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            device="meta",
        )
        tensor.held = held
        return tensor

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise RuntimeError(f"{func}: a tensor of the accelerator, used outside of it")

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def numpy(self, *, force: bool = False) -> Any:
        if not force:
            raise TypeError(f"can't convert {DEVICE} device type tensor to numpy. Copy it to host memory first.")
        return self.cpu().numpy()

    def __array__(self, *_: Any, **__: Any) -> Any:
        return self.numpy()

    def new_tensor(self, data: Any, *, dtype: torch.dtype | None = None) -> Tensor:
        return torch.tensor(data, dtype=dtype or self.dtype, device=DEVICE)

    def __format__(self, spec: str) -> str:
        return format(self.cpu(), spec)

    def __str__(self) -> str:
        return str(self.cpu())

    def __repr__(self) -> str:  # for messages of tests, which read no value on behalf of the package
        return f"DeviceTensor({self.held})"


class Accelerator(TorchDispatchMode):
    """Within it, ``cuda:0`` exists: factories, moves and computations give tensors that say they are there."""

    def __init__(self) -> None:
        super().__init__()
        self.refusing = True
        self.refused: list[str] = []
        self.late: list[tuple[Tensor, Tensor]] = []  # asynchronous copies to the host: destination, values
        self._patches: list[Any] = []
        self._entered = 0

    def __enter__(self) -> Accelerator:
        if self._entered == 0:
            for name in ("tensor", "as_tensor"):  # which copy to the device without dispatching
                self._patches.append(mock.patch.object(torch, name, _moved_after(getattr(torch, name))))
            if not torch.cuda.is_available():
                # Torch initialises CUDA before it dispatches; there is nothing to be initialised.
                self._patches.append(mock.patch.object(torch.cuda, "_lazy_init"))
            for patch in self._patches:
                patch.start()
        self._entered += 1
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._entered -= 1
        while self._patches and self._entered == 0:
            self._patches.pop().stop()

    @contextmanager
    def allowed(self) -> Iterator[None]:
        """Let the host wait for the device, as `compute` may."""
        before, self.refusing = self.refusing, False
        try:
            yield
        finally:
            self.refusing = before

    def put(self, tensor: Tensor) -> Tensor:
        """Return a copy on the accelerator, in the same strides."""
        with self.allowed():
            return tensor.to(DEVICE)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func._schema.name.removeprefix("aten::")
        if func._can_decompose():  # in inference mode these arrive whole, and may hide what synchronises
            with self:
                result = func.decompose(*args, **kwargs)
            if result is not NotImplemented:
                return result
        given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        here = [tensor for tensor in given if isinstance(tensor, DeviceTensor)]
        wanted = kwargs.get("device")
        wanted = None if wanted is None else torch.device(wanted).type
        if wanted == "meta":  # of a tensor that torch takes for one there
            wanted = DEVICE.type
        if name in ("_to_copy", "copy_"):
            return self._copied(func, name, args, kwargs, wanted)
        if not here and wanted != DEVICE.type:
            return func(*args, **kwargs)
        hosted = [tensor for tensor in given if tensor.ndim and not isinstance(tensor, DeviceTensor)]
        if here and hosted:
            raise RuntimeError(f"{name}: expected all tensors to be on the same device, but found cpu and {DEVICE}")
        if here and _synchronises(name, func, args, kwargs):
            self._synchronise(name)
        results = func(
            *tree_map(_held, args), **tree_map(_held, kwargs | ({} if wanted is None else {"device": "cpu"}))
        )
        if wanted not in (None, DEVICE.type):
            return results
        return tree_map(functools.partial(_wrapped, {id(tensor.held): tensor for tensor in here}), results)

    def _copied(self, func: Any, name: str, args: Any, kwargs: Any, wanted: str | None) -> Any:
        """Copy on the device, to it or from it."""
        source = args[1] if name == "copy_" else args[0]
        target = args[0].device.type if name == "copy_" else wanted or source.device.type
        to_device, from_device = target == DEVICE.type, isinstance(source, DeviceTensor)
        blocking = not (kwargs.get("non_blocking") or (name == "copy_" and len(args) > 2 and args[2]))
        if to_device != from_device and blocking:
            self._synchronise(f"a blocking copy from {source.device} to {target}")
        if to_device or not from_device:
            kwargs = kwargs | ({"device": "cpu"} if wanted == DEVICE.type else {})
            result = func(*tree_map(_held, args), **kwargs)
            return (args[0] if name == "copy_" else DeviceTensor(result)) if to_device else result
        result = func(*tree_map(_held, args), **kwargs)
        if not blocking:
            self.late.append((result, result.clone()))
            _spoil(result)
        return result

    def _synchronise(self, name: str) -> None:
        if self.refusing:
            self.refused.append(name)  # in case somebody catches the error
            raise SynchronisationError(f"{name} waits for the device")
        for destination, values in self.late:
            destination.copy_(values)
        self.late.clear()


def _moved_after(factory: Any) -> Any:
    @functools.wraps(factory)
    def made(data: Any, *, device: Any = None, **options: Any) -> Tensor:
        tensor = factory(data, **options)
        return tensor if device is None else tensor.to(device)

    return made


def _held(value: Any) -> Any:
    return value.held if isinstance(value, DeviceTensor) else value


def _wrapped(known: dict[int, DeviceTensor], value: Any) -> Any:
    """Return a tensor of the accelerator for one of the CPU: the argument itself for what was done in place."""
    if not isinstance(value, Tensor):
        return value
    return known[id(value)] if id(value) in known else DeviceTensor(value)


def _synchronises(name: str, func: Any, args: Any, kwargs: Any) -> bool:
    if name in ("index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index"):
        return any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in args[1])
    if name == "repeat_interleave":
        return kwargs.get("output_size") is None
    return name in DATA_DEPENDENT or any(
        str(result.type) in ("bool", "int", "float", "number") for result in func._schema.returns
    )


def _spoil(tensor: Tensor) -> None:
    """Fill with what no computation gives: a value that is read too early has to be seen."""
    if tensor.dtype == torch.bool:
        tensor.fill_(True)
    else:
        tensor.copy_(
            torch.full((tensor.numel() * tensor.element_size(),), 0x55, dtype=torch.uint8)
            .view(tensor.dtype)
            .view(tensor.shape)
        )
