"""
The machine code of kernels: what may be loaded while the predecessor still runs is loaded before the wait for it.

Which the source alone does not decide: the assembler moves loads of read-only memory (ld.global.nc) below the wait.
"""

from __future__ import annotations

import struct
from importlib.util import find_spec
from pathlib import Path

import pytest

from lane_mlir.checkpoint import Checkpoint
from lane_mlir.cuda.compile import CompileOptions, compile_unit
from lane_mlir.cuda.printer import print_unit
from lane_mlir.dialects.launch import ScheduleOp
from lane_mlir.runtime.recipe import Recipe
from lane_mlir.target import make_target

MODELS = Path(__file__).parent.parent / "data" / "models"

needs_nvrtc = pytest.mark.skipif(
    find_spec("cuda") is None or find_spec("nvidia") is None,
    reason="NVRTC is not installed: pip install 'lane-mlir[cuda]'",
)

LDG, PREEXIT, ACQBULK = 0x981, 0x82D, 0x82E
"""
Of an instruction of sm_90, 16 bytes, the low 12 bits: a load from global memory, griddepcontrol.launch_dependents and
griddepcontrol.wait.
"""


def code_of(cubin: bytes) -> dict[str, list[int]]:
    """The opcodes of every kernel of a cubin, an ELF file of 64 bits, in order."""
    (table,) = struct.unpack_from("<Q", cubin, 0x28)
    size, count, names = struct.unpack_from("<HHH", cubin, 0x3A)
    sections = [struct.unpack_from("<IIQQQQ", cubin, table + i * size) for i in range(count)]
    kernels: dict[str, list[int]] = {}
    for name, _, _, _, at, length in sections:
        begin = sections[names][4] + name
        symbol = cubin[begin : cubin.index(b"\0", begin)].decode()
        if symbol.startswith(".text."):
            words = struct.iter_unpack("<QQ", cubin[at : at + length])
            kernels[symbol.removeprefix(".text.")] = [low & 0xFFF for low, _ in words]
    return kernels


def loads_before_the_wait(code: list[int]) -> int:
    return code[: code.index(ACQBULK)].count(LDG)


def step_of(model: str) -> dict[str, list[int]]:
    """The opcodes of the kernels of a decode step."""
    recipe = Recipe(make_target("int8", cache="f16"))
    module = recipe.lift(Checkpoint.open(MODELS / model), 1, "last")
    recipe.lower(module)
    (schedule,) = (op for op in module.ops if isinstance(op, ScheduleOp))
    unit = print_unit(schedule)
    kernels = code_of(compile_unit(unit.text, CompileOptions("sm_90a"), name="step.cu"))
    assert set(kernels) == {use.symbol for use in unit.uses}
    return kernels


@needs_nvrtc
def test_products_load_their_first_weights_before_they_wait():
    kernels = step_of("qwen3-Q8_0.gguf")
    products = {symbol: code for symbol, code in kernels.items() if symbol.startswith("gemv")}
    assert len(products) >= 4
    # q8_0 has three planes, so a row is at least three loads; every norm has its weight.
    assert {symbol: n for symbol, code in products.items() if (n := loads_before_the_wait(code)) < 3} == {}
    norms = {symbol: code for symbol, code in kernels.items() if symbol.startswith("rms_norm")}
    assert {symbol: n for symbol, code in norms.items() if (n := loads_before_the_wait(code)) < 1} == {}


@needs_nvrtc
def test_a_mixture_chooses_and_loads_before_its_hidden_values_are_there():
    """And the kernel before lets it start only after its own wait, when the logits are there."""
    kernels = step_of("qwen3moe-moe-Q4_K_M.gguf")
    hidden = [code for symbol, code in kernels.items() if symbol.startswith("moe_hidden")]
    down = [code for symbol, code in kernels.items() if symbol.startswith("moe_down")]
    assert hidden
    assert down
    assert all(code.index(ACQBULK) < code.index(PREEXIT) for code in hidden)
    # A logit, and the planes of a unit.
    assert all(loads_before_the_wait(code) >= 3 for code in down)


@needs_nvrtc
def test_read_only_loads_would_not_come_before_it():
    """Why kernels load weights as they do; if this fails, the assembler has changed, and ld.global.nc may return."""
    text = """
extern "C" __global__ void waits(const uint4* w, const uint4* x, uint4* y) {
  uint4 v;
  asm volatile("ld.global.KIND.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(w + threadIdx.x));
  asm volatile("griddepcontrol.wait;" ::: "memory");
  uint4 u = x[threadIdx.x];
  y[threadIdx.x] = {v.x + u.x, v.y + u.y, v.z + u.z, v.w + u.w};
}
"""
    options = CompileOptions("sm_90a")
    plain = code_of(compile_unit(text.replace("KIND", "L1::no_allocate"), options))["waits"]
    read_only = code_of(compile_unit(text.replace("KIND", "nc.L1::no_allocate"), options))["waits"]
    assert (loads_before_the_wait(plain), loads_before_the_wait(read_only)) == (1, 0)
