"""The type of a buffer of a schedule."""

from __future__ import annotations

from xdsl.ir import ParametrizedAttribute, TypeAttribute
from xdsl.irdl import irdl_attr_definition


@irdl_attr_definition
class BufferType(ParametrizedAttribute, TypeAttribute):
    """
    A buffer of a schedule: `!launch.buffer`. Its shape, how it is stored and where it lies are fields of the
    `launch.buffer` that defines it, since planning settles them.
    """

    name = "launch.buffer"


BUFFER = BufferType()
