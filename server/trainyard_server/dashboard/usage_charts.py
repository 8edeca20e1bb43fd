"""Usage of replicas over time as small SVG charts, with the numbers behind them. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise

from trainyard_protocol.answers.usage import UsageSeries, UsageView
from trainyard_protocol.fields import sized
from trainyard_server.dashboard.frame import Frame, path

WIDTH, HEIGHT = 300.0, 56.0
"""View box of a chart; the page stretches it."""

_HEADROOM, _ROOM = 1.12, 2.5
_GAP_FACTOR, _GAP_LEAST_S = 4.0, 15.0  # more than so many times the usual interval is a gap in the curve

Values = Sequence[float | None]


@dataclass(frozen=True, slots=True)
class ChartLine:
    """One curve: `path` of the line, `area` below it. `number` picks its colour."""

    name: str
    path: str
    area: str
    number: int
    values: str


@dataclass(frozen=True, slots=True)
class UsageChart:
    """`unit` is cores, bytes or share. `limit` is the y of the line of the allocation; None: far above everything that
    was measured. `offsets`: seconds after the start, separated by commas, as are the `values` of a line, empty where
    unknown."""

    key: str
    title: str
    unit: str
    now: str
    most: str
    label: str
    limit: float | None
    lines: Sequence[ChartLine]
    offsets: str


@dataclass(frozen=True, slots=True)
class ReplicaCharts:
    task: str
    charts: Sequence[UsageChart]


@dataclass(frozen=True, slots=True)
class UsageCharts:
    """Charts of the time from `start` to `end`; none where nothing was measured."""

    replicas: Sequence[ReplicaCharts]
    start: datetime | None = None
    end: datetime | None = None

    @property
    def is_long(self) -> bool:
        """Whether times need a date."""
        return self.start is not None and self.end is not None and (self.end - self.start).days > 0


def usage_charts(view: UsageView) -> UsageCharts:
    measured = [series for series in view.replicas if series.time]
    if not measured:
        return UsageCharts(())
    start = min(series.time[0] for series in measured)
    end = max(series.time[-1] for series in measured)
    whole = max(1.0, (end - start).total_seconds())
    return UsageCharts(
        [ReplicaCharts(series.task, list(_charts(series, start, whole))) for series in measured], start, end
    )


def _charts(series: UsageSeries, start: datetime, whole: float) -> Iterator[UsageChart]:
    offsets = [(at - start).total_seconds() for at in series.time]
    replica = _Replica(series.task, offsets, whole)
    cores = f" of {series.cpus}" if series.cpus else ""
    yield replica.chart("cpu", "CPU", "cores", {"CPU": series.cpu}, series.cpus, f"{cores} cores")
    memory = f" of {sized(series.memory_given)}" if series.memory_given else ""
    given = series.memory_given
    yield replica.chart("memory", "Memory", "bytes", {"Memory": series.memory_bytes}, given, memory)
    if series.gpus:
        devices = dict(enumerate(series.gpus.values()))
        shares = {f"GPU {index}": device.utilization for index, device in devices.items()}
        yield replica.chart("gpu", "GPU busy", "share", shares, 1, "")
        taken: dict[str, Values] = {f"GPU {index}": device.memory_bytes for index, device in devices.items()}
        total = max(device.memory_total for device in devices.values())
        of_total = f" of {sized(total)}" if total else ""
        yield replica.chart("gpu-memory", "GPU memory", "bytes", taken, total, of_total)


@dataclass(frozen=True, slots=True)
class _Replica:
    task: str
    offsets: Sequence[float]
    whole: float

    def chart(self, key: str, title: str, unit: str, lines: Mapping[str, Values], given: float, of: str) -> UsageChart:
        numbers = [value for values in lines.values() for value in values if value is not None]
        peak = max(numbers, default=0.0)
        # Below a tenth of the allocation the curve would lie at the bottom: it is scaled to its own peak.
        near = bool(given) and (unit != "bytes" or peak > given / 10)
        top = (max(peak, given) * _HEADROOM if near else peak * _ROOM) or 1.0
        latest = [value for value in (values[-1] for values in lines.values()) if value is not None]
        now = _formatted(sum(latest) / len(latest), unit) + of if latest else "not known now"
        several = "mean " if len(latest) > 1 else ""
        most = f"at most {_formatted(peak, unit)}"
        return UsageChart(
            key=f"{self.task}-{key}",
            title=title,
            unit=unit,
            now=several + now,
            most=most,
            label=f"{title} of {self.task}: {several}{now}, {most}",
            limit=round(HEIGHT - given / top * HEIGHT, 1) if near else None,
            lines=[
                ChartLine(name, *self._paths(values, top), number % 8 + 1, _joined(values, unit))
                for number, (name, values) in enumerate(lines.items())
            ],
            offsets=",".join(f"{offset:.0f}" for offset in self.offsets),
        )

    def _paths(self, values: Values, top: float) -> tuple[str, str]:
        frame = Frame(WIDTH, HEIGHT, 0, self.whole, 0, top)
        lines, areas = [], []
        for stretch in self._stretches(values):
            places = [frame.at(*point) for point in stretch]
            if len(places) == 1:  # a point alone is a short dash
                x, y = places[0]
                places = [(max(0.0, x - 1.5), y), (min(WIDTH, x + 1.5), y)]
            lines.append(path(places))
            areas.append(path([(places[0][0], HEIGHT), *places, (places[-1][0], HEIGHT)]) + "Z")
        return "".join(lines), "".join(areas)

    def _stretches(self, values: Values) -> Iterator[list[tuple[float, float]]]:
        """Points without a gap between them: nothing is drawn where nothing was measured."""
        distances = sorted(after - before for before, after in pairwise(self.offsets))
        usual = distances[len(distances) // 2] if distances else 0.0
        limit = max(_GAP_LEAST_S, usual * _GAP_FACTOR)
        stretch: list[tuple[float, float]] = []
        for offset, value in zip(self.offsets, values, strict=True):
            if stretch and (value is None or offset - stretch[-1][0] > limit):
                yield stretch
                stretch = []
            if value is not None:
                stretch.append((offset, value))
        if stretch:
            yield stretch


def _formatted(value: float, unit: str) -> str:
    match unit:
        case "cores":
            return f"{value:.1f}" if value < 10 else f"{value:.0f}"
        case "share":
            return f"{value:.0%}"
        case _:
            return sized(value)


def _joined(values: Values, unit: str) -> str:
    form = "{:.0f}" if unit == "bytes" else "{:.3g}"
    return ",".join("" if value is None else form.format(value) for value in values)
