"""Pictures of what was measured: a trace that Perfetto opens, and a roofline as SVG."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from html import escape

from lane_mlir.cuda.bench.figures import Figures, KindTime, by_kind

WIDTH, HEIGHT, MARGIN = 720, 460, 64

_COLORS = ("#1b6ca8", "#c0392b", "#27864b", "#8e44ad", "#b9770e", "#117a65", "#7b241c", "#2e4053")

INT8_OPERATIONS = {"sm_80": 624e12, "sm_90a": 1979e12}
"""Peak of dense int8 products, by architecture (NVIDIA's data sheets of the A100 and the H200): no measurement."""


def trace(figures: Figures) -> str:
    """
    A step as a Chrome trace in JSON, which Perfetto opens: a slice a launch, one after the other as they were timed,
    with what it was made from and what it moved.
    """
    events: list[dict[str, object]] = [
        {"ph": "M", "pid": 1, "tid": 1, "name": "thread_name", "args": {"name": f"a step on {figures.card}"}}
    ]
    at = 0.0
    for launch in figures.launches:
        microseconds = launch.seconds * 1e6
        arguments = {
            "launch": launch.where,
            "kernels": list(launch.kernels),
            "covers": list(launch.launch.covers.data),
            "rules": list(launch.launch.rules.data),
            "weight bytes": launch.traffic.weights,
            "state bytes": launch.traffic.state,
            "activation bytes": launch.traffic.activations,
            "GB/s": launch.traffic.bytes / launch.seconds / 1e9 if launch.seconds else None,
        }
        events.append(
            {
                "ph": "X",
                "pid": 1,
                "tid": 1,
                "name": launch.kernels[0],
                "cat": launch.kind,
                "ts": at,
                "dur": microseconds,
                "args": arguments,
            }
        )
        at += microseconds
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ns", "otherData": {"model": figures.model}})


def roofline(figures: Figures, arch: str) -> str:
    """
    A roofline as SVG: for each kind of launch its operations a byte and operations a second, under the card's measured
    read bandwidth and the peak of its int8 products. Kinds without products have no place in it.
    """
    kinds = [kind for kind in by_kind(figures.launches) if kind.traffic.operations and kind.seconds]
    peak = INT8_OPERATIONS.get(arch)
    axes = _Axes(kinds, figures.bandwidth, peak)
    body = [*axes.grid(), *_roofs(axes, figures.bandwidth, peak), *_points(axes, kinds)]
    title = f"{figures.model}, {figures.card}, {figures.target.numerics.data}, depth {figures.depth}"
    style = 'font-family="sans-serif" font-size="12"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" {style}>\n'
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>\n'
        f'<text x="{MARGIN}" y="24" font-size="14">{escape(title)}</text>\n' + "\n".join(body) + "\n</svg>\n"
    )


class _Axes:
    """Where operations a byte and operations a second lie, both by powers of ten."""

    def __init__(self, kinds: Sequence[KindTime], bandwidth: float, peak: float | None):
        intensities = [intensity(kind) for kind in kinds]
        rates = [kind.traffic.operations / kind.seconds for kind in kinds]
        ridge: list[float] = [peak / bandwidth] if peak is not None else []
        self.x = (
            math.floor(math.log10(min([*intensities, 1.0]))),
            math.ceil(math.log10(max([10.0, *intensities, *ridge]))),
        )
        highest = max([*rates, bandwidth, peak or bandwidth])
        self.y = (math.floor(math.log10(min([*rates, bandwidth]))), math.ceil(math.log10(highest)))

    def at(self, x: float, y: float) -> tuple[float, float]:
        (x0, x1), (y0, y1) = self.x, self.y
        across = (math.log10(x) - x0) / (x1 - x0) * (WIDTH - 2 * MARGIN)
        up = (math.log10(y) - y0) / (y1 - y0) * (HEIGHT - 2 * MARGIN)
        return MARGIN + across, HEIGHT - MARGIN - up

    def grid(self) -> Iterator[str]:
        low_y, low_x = 10.0 ** self.y[0], 10.0 ** self.x[0]
        for power in range(self.x[0], self.x[1] + 1):
            (x, bottom), (_, top) = self.at(10.0**power, low_y), self.at(10.0**power, 10.0 ** self.y[1])
            yield f'<line x1="{x:.1f}" y1="{bottom:.1f}" x2="{x:.1f}" y2="{top:.1f}" stroke="#ddd"/>'
            yield f'<text x="{x:.1f}" y="{bottom + 16:.1f}" text-anchor="middle">{_power(power)}</text>'
        for power in range(self.y[0], self.y[1] + 1):
            (left, y), (right, _) = self.at(low_x, 10.0**power), self.at(10.0 ** self.x[1], 10.0**power)
            yield f'<line x1="{left:.1f}" y1="{y:.1f}" x2="{right:.1f}" y2="{y:.1f}" stroke="#ddd"/>'
            yield f'<text x="{left - 6:.1f}" y="{y + 4:.1f}" text-anchor="end">{_power(power)}</text>'
        yield f'<text x="{WIDTH / 2}" y="{HEIGHT - 16}" text-anchor="middle">operations a byte</text>'
        middle = HEIGHT / 2
        turned = f'text-anchor="middle" transform="rotate(-90 16 {middle})"'
        yield f'<text x="16" y="{middle}" {turned}>operations a second</text>'


def _roofs(axes: _Axes, bandwidth: float, peak: float | None) -> Iterator[str]:
    left, right = 10.0 ** axes.x[0], 10.0 ** axes.x[1]
    ridge = right if peak is None else min(peak / bandwidth, right)
    points = [axes.at(left, left * bandwidth), axes.at(ridge, ridge * bandwidth)]
    if peak is not None and ridge < right:
        points.append(axes.at(right, peak))
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    yield f'<polyline points="{path}" fill="none" stroke="black" stroke-width="1.5"/>'
    x, y = axes.at(left, left * bandwidth)
    yield f'<text x="{x + 8:.1f}" y="{y - 8:.1f}">read at {bandwidth / 1e12:.2f} TB/s</text>'


def _points(axes: _Axes, kinds: Sequence[KindTime]) -> Iterator[str]:
    for i, kind in enumerate(kinds):
        x, y = axes.at(intensity(kind), kind.traffic.operations / kind.seconds)
        color = _COLORS[i % len(_COLORS)]
        label = f"{kind.kind}: {kind.count} x {kind.seconds / kind.count * 1e6:.1f} us"
        yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5" fill="{color}"><title>{escape(label)}</title></circle>'
        row = MARGIN + 16 * i
        yield f'<circle cx="{WIDTH - 210}" cy="{row - 4}" r="4" fill="{color}"/>'
        yield f'<text x="{WIDTH - 200}" y="{row}">{escape(label)}</text>'


def intensity(kind: KindTime) -> float:
    """Operations a byte."""
    return kind.traffic.operations / max(kind.traffic.bytes, 1.0)


def _power(power: int) -> str:
    return f'10<tspan dy="-5" font-size="9">{power}</tspan>'
