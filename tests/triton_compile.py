"""Compiles what the launchers launch, for GPUs that are not there, and tells what it costs.

Launchers are called with tensors of the meta device, and their kernels replaced by recorders: what is compiled is what
would be launched, with the types, strides and divisibility that Triton would specialise on.
"""

import re
import subprocess
from pathlib import Path
from typing import NamedTuple

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import get_ptxas
from triton.compiler import ASTSource

TARGETS = {
    "sm_80": GPUTarget("cuda", 80, 32),
    "sm_90": GPUTarget("cuda", 90, 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
}
# Bytes of shared memory that one block may have.
SHARED = {"sm_80": 163 * 1024, "sm_90": 227 * 1024, "gfx942": 64 * 1024}
POINTERS = {
    torch.float16: "*fp16",
    torch.bfloat16: "*bf16",
    torch.float32: "*fp32",
    torch.float64: "*fp64",
    torch.uint8: "*u8",
    torch.int8: "*i8",
    torch.int16: "*i16",
    torch.int32: "*i32",
    torch.int64: "*i64",
}
OPTIONS = ("num_warps", "num_stages", "enable_fp_fusion")


class Launch(NamedTuple):
    """One launch: the kernel, its arguments by name, and the options of the compiler."""

    kernel: object
    arguments: dict
    options: dict


class Recorder:
    """Stands in for a kernel and keeps what it is launched with."""

    def __init__(self, kernel, launches):
        self.kernel, self.launches = kernel, launches

    def __getitem__(self, grid):
        assert all(0 < size < 2**31 for size in grid)
        assert all(size < 2**16 for size in grid[1:])

        def launch(*args, **kwargs):
            options = {name: kwargs.pop(name) for name in OPTIONS if name in kwargs}
            arguments = dict(zip(self.kernel.arg_names, args, strict=False)) | kwargs
            assert set(arguments) == set(self.kernel.arg_names)
            self.launches.append(Launch(self.kernel, arguments, options))

        return launch


def record(monkeypatch, module, *names):
    """Replace the kernels ``names`` of a module; return the list that fills with their launches."""
    launches = []
    for name in names:
        kernel = getattr(module, name)
        kernel = kernel.kernel if isinstance(kernel, Recorder) else kernel
        monkeypatch.setattr(module, name, Recorder(kernel, launches))
    return launches


class Cost(NamedTuple):
    """What a compiled kernel takes."""

    registers: int  # of a thread
    spilled: int  # bytes; of AMD's, registers and bytes
    shared: int  # bytes
    products: frozenset  # the instructions that multiply: of the tensor cores, or a fused multiply-add


def compile_for(target, launch):
    """Compile a launch, as Triton would on such a GPU."""
    names = launch.kernel.arg_names
    signature, constants, attributes = {}, {}, {}
    for at, param in enumerate(launch.kernel.params):
        value = launch.arguments[param.name]
        if param.is_constexpr or (isinstance(value, int) and value == 1):
            signature[param.name], constants[(at,)] = "constexpr", value
        elif isinstance(value, torch.Tensor):
            signature[param.name], attributes[(at,)] = POINTERS[value.dtype], [["tt.divisibility", 16]]
        else:
            signature[param.name] = "i32" if -(2**31) <= value < 2**31 else "i64"
            if value % 16 == 0:
                attributes[(at,)] = [["tt.divisibility", 16]]
    assert list(signature) == list(names)
    source = ASTSource(launch.kernel, signature, constants, attributes)
    return triton.compile(source, target=TARGETS[target], options=dict(launch.options))


def cost(target, compiled, folder):
    """Read registers, spills, shared memory and matrix instructions from compiled code."""
    if target == "gfx942":
        code = compiled.asm["amdgcn"]

        def number(name):
            return int(re.search(rf"\.{name}:\s+(\d+)", code).group(1))

        # Scalar registers are spilled to lanes of vector registers, not to memory.
        spilled = number("vgpr_spill_count") + number("private_segment_fixed_size")
        products = frozenset(re.findall(r"v_mfma_\w+", code))
        return Cost(number("vgpr_count"), spilled, compiled.metadata.shared, products)
    code = compiled.asm["ptx"]
    path = Path(folder) / "kernel.ptx"
    path.write_text(code)
    arch = re.search(r"\.target (\w+)", code).group(1)
    assembler, binary = get_ptxas(TARGETS[target].arch).path, path.with_suffix(".cubin")
    command = [assembler, "-v", f"--gpu-name={arch}", str(path), "-o", str(binary)]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    spills = [int(size) for size in re.findall(r"(\d+) bytes (?:stack frame|spill stores|spill loads)", told)]
    assert len(spills) == 3, told
    registers = int(re.search(r"Used (\d+) registers", told).group(1))
    products = frozenset(re.findall(r"(?:wgmma\.mma_async|mma\.sync|fma\.rn)[\w.]*", code))
    return Cost(registers, sum(spills), compiled.metadata.shared, products)
