"""What the launches of a schedule read and write."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from xdsl.ir import SSAValue

from lane_mlir.dialects.launch import BufferOp, Fill, LaunchOp, ScheduleOp, ViewOp, holder


class Uses:
    """The readers and writers of every buffer that holds elements, in the order they run; views run nothing."""

    def __init__(self, schedule: ScheduleOp):
        self.launches = [launch for launch in schedule.launches() if not isinstance(launch, ViewOp)]
        self.readers: dict[BufferOp, list[LaunchOp]] = defaultdict(list)
        self.writers: dict[BufferOp, list[LaunchOp]] = defaultdict(list)
        self.outputs = {holder(value) for value in schedule.outputs()}
        for launch in self.launches:
            for values, users in ((launch.reads(), self.readers), (launch.writes(), self.writers)):
                for buffer in dict.fromkeys(map(holder, values)):
                    users[buffer].append(launch)

    def readers_within(self, launch: LaunchOp, value: SSAValue) -> Sequence[LaunchOp]:
        """What reads a result that a launch alone writes and that nothing outside the step sees; else nothing."""
        buffer = holder(value)
        inside = buffer.fill.data is Fill.COMPUTED and buffer not in self.outputs
        return self.readers[buffer] if inside and self.writers[buffer] == [launch] else ()
