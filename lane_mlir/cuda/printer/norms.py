"""Printing of norms, and of the gather that a norm follows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from xdsl.ir import SSAValue

from lane_mlir.cuda.kernels.gemv import QBLOCK
from lane_mlir.cuda.printer.kernel import (
    Kernel,
    Printers,
    Printing,
    dst_of,
    element_type,
    part_of,
    refuse,
    struct,
)
from lane_mlir.cuda.printer.vectors import numbers_of, quantize_apart, threads_for, vector_width
from lane_mlir.dialects.launch import OWN, L2NormOp, NormOp


@dataclass(frozen=True)
class NormConstants:
    """A norm as kernels take it: its constants, but for how its result is written."""

    launch: NormOp
    vec: int
    words: int
    """Words of the quantized result that the norm itself writes; 0: none, or it is written apart."""

    @staticmethod
    def of(launch: NormOp, printing: Printing) -> NormConstants:
        """Raises LaneError for a result that no kernel quantizes."""
        cols, part = launch.cols.data, launch.part.data if launch.part is not None else None
        dst = launch.dst.data if launch.dst is not None else None
        buffers = (launch.x, launch.add, launch.sum, launch.w, launch.b, launch.pre_w, launch.out, launch.y)
        vec = vector_width(buffers, (cols, *numbers_of(part), *numbers_of(dst)))
        vec = 4 if vec == 4 else 1
        if launch.quant is None:
            return NormConstants(launch, vec, 0)
        whole = vec == 4 and cols % QBLOCK == 0
        if not whole and launch.y is not None:
            raise refuse(launch, f"it quantizes rows of {cols} values, and the values themselves land elsewhere")
        return NormConstants(launch, vec, printing.words if whole else 0)

    @property
    def quantized_apart(self) -> bool:
        """Whether a kernel of its own quantizes the result."""
        return self.launch.quant is not None and not self.words

    @property
    def writes_values(self) -> bool:
        return self.launch.f32 is not None or self.quantized_apart

    @property
    def threads(self) -> int:
        """Threads of a block that takes one row and does nothing else."""
        return threads_for(self.launch.cols.data // self.vec)

    @property
    def shape(self) -> str:
        """`NormShape{.cols = 576, .eps = 1e-05f}`."""
        launch = self.launch
        return struct(
            "NormShape",
            cols=launch.cols.data,
            vec=None if self.vec == 4 else self.vec,
            eps=launch.eps.data,
            center=True if launch.center is not None else None,
            pre=True if launch.pre_eps is not None else None,
            pre_eps=launch.pre_eps.data if launch.pre_eps is not None else None,
            words=self.words or None,
            f32=None if self.writes_values else False,
            part=part_of(launch.part.data) if launch.part is not None else None,
            dst=dst_of(launch.dst.data) if launch.dst is not None and launch.dst.data != OWN else None,
        )

    def operands(
        self,
        printing: Printing,
        prefix: str = "",
        *,
        reads_x: bool = True,
        given: Mapping[str, SSAValue] = MappingProxyType({}),
    ) -> str:
        """
        `NormOperands<float>{…}` with its buffers, their names behind a prefix; `reads_x`: unless the kernel that the
        norm is in has the values of x already; `given`: others than the launch's x, add and sum, where a sum that was
        another launch is taken with it.
        """
        launch, into = self.launch, self.launch.into
        own = launch.out if self.writes_values else None
        y = launch.y if launch.f32 is not None and into is not None else own
        type = "float" if y is None else element_type(y)
        read = [
            printing.reads(f"{prefix}{name}", value)
            for name, value in (
                ("x", given.get("x", launch.x) if reads_x else None),
                ("add", given.get("add", launch.add)),
                ("pre_w", launch.pre_w),
                ("w", launch.w),
                ("b", launch.b),
            )
        ]
        written = printing.writes(f"{prefix}sum", given.get("sum", launch.sum))
        if self.quantized_apart and launch.f32 is None:
            made = printing.scratch("values", "float", 4 * launch.rows.data * launch.cols.data)
        else:
            made = printing.writes(f"{prefix}y", y)
        param = printing.reads(f"{prefix}row", launch.param)
        quantized = "nullptr, nullptr"
        if self.words and launch.out is not None:
            quantized = printing.writes_quantized(f"{prefix}y", launch.out)
        return f"NormOperands<{type}>{{{', '.join([*read, written, made, param, quantized])}}}"

    def after(self, printing: Printing) -> list[Kernel]:
        """The kernel that quantizes the result, where one does."""
        launch = self.launch
        if not self.quantized_apart or launch.out is None:
            return []
        n = launch.rows.data * launch.cols.data
        values = "values"
        if launch.f32 is None:
            printing.scratch(values, "const float", 4 * n)
        else:
            values = printing.reads("x", launch.out)
        return [quantize_apart(printing, values, launch.out, n)]


def print_norm(
    launch: NormOp, printing: Printing, given: Mapping[str, SSAValue] = MappingProxyType({})
) -> Sequence[Kernel]:
    """`given`: as for NormConstants.operands."""
    if launch.squares is not None:
        raise refuse(launch, "it leaves its division to its readers, which only a norm in a launch with a product does")
    norm = NormConstants.of(launch, printing)
    operands = norm.operands(printing, given=given)
    kernel = Kernel(
        name="layer_norm" if launch.center is not None else "rms_norm",
        header="norm.cuh",
        call=f"norm<{norm.shape}, {norm.threads}>({operands})",
        arguments=printing.take(),
        grid=(launch.rows.data, 1, 1),
        block=norm.threads,
    )
    return [kernel, *norm.after(printing)]


def print_l2_norm(launch: L2NormOp, printing: Printing) -> Sequence[Kernel]:
    cols = launch.cols.data
    operands: tuple[SSAValue, ...] = (launch.x, launch.y)
    vec = 4 if vector_width(operands, (cols,)) == 4 else 1
    threads = threads_for(cols // vec)
    shape = struct("NormShape", cols=cols, vec=None if vec == 4 else vec, eps=launch.eps.data)
    x, y = printing.reads("x", launch.x), printing.writes("y", launch.y)
    return [
        Kernel(
            name="l2_norm",
            header="norm.cuh",
            call=f"l2_norm<{shape}, {threads}>({x}, {y})",
            arguments=printing.take(),
            grid=(launch.rows.data, 1, 1),
            block=threads,
        )
    ]


PRINTERS: Printers = {
    NormOp: print_norm,
    L2NormOp: print_l2_norm,
}
