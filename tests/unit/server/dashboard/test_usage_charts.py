"""Usage of replicas over time as small charts."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from trainyard_protocol.views.usage import GpuSeries, UsageSeries, UsageView
from trainyard_server.dashboard.usage_charts import HEIGHT, WIDTH, UsageChart, usage_charts

START = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)
GB = 10**9


def charts(offsets: list[float], **given: Any) -> dict[str, UsageChart]:
    """Charts of one replica, by title."""
    fields: dict[str, Any] = {
        "task": "master-replica-0",
        "cpus": 4,
        "memory_given": 8 * GB,
        "time": [START + timedelta(seconds=offset) for offset in offsets],
        "cpu": [1.0] * len(offsets),
        "memory_bytes": [GB] * len(offsets),
    }
    series = UsageSeries.model_validate(fields | given)
    (replica,) = usage_charts(UsageView(project="p", job_id="j", run=1, replicas=(series,))).replicas
    return {chart.title: chart for chart in replica.charts}


def points(path: str) -> list[list[tuple[float, float]]]:
    return [
        [(float(x), float(y)) for x, y in (one.split(" ") for one in stretch.split("L"))]
        for stretch in path.split("M")[1:]
    ]


def test_nothing_measured_is_no_chart() -> None:
    series = UsageSeries(task="master-replica-0", cpus=1, memory_given=1)
    drawn = usage_charts(UsageView(project="p", job_id="j", replicas=(series,)))
    assert (drawn.replicas, drawn.start, drawn.is_long) == ((), None, False)


def test_curve_goes_from_the_left_to_the_right_and_up_with_the_value() -> None:
    (line,) = charts([0, 5, 10], cpu=[0.0, 2.0, 4.0])["CPU"].lines
    ((first, middle, last),) = points(line.path)
    assert (first, last[0]) == ((0.0, HEIGHT), WIDTH)
    assert middle[0] == WIDTH / 2
    assert 0 < last[1] < middle[1] < HEIGHT


def test_charts_of_all_replicas_share_their_time() -> None:
    early = UsageSeries(task="a", cpus=1, memory_given=1, time=(START,), cpu=(1.0,), memory_bytes=(1,))
    late_at = START + timedelta(days=2)
    late = UsageSeries(task="b", cpus=1, memory_given=1, time=(late_at,), cpu=(1.0,), memory_bytes=(1,))
    drawn = usage_charts(UsageView(project="p", job_id="j", replicas=(early, late)))
    assert (drawn.start, drawn.end, drawn.is_long) == (START, late_at, True)
    xs = [points(replica.charts[0].lines[0].path)[0][0][0] for replica in drawn.replicas]
    assert xs[0] < 2
    assert xs[1] > WIDTH - 3


@pytest.mark.parametrize(
    ("offsets", "cpu", "stretches"),
    [
        ([0, 5, 10, 15], [1.0, 1.0, 1.0, 1.0], 1),
        ([0, 5, 10, 300, 305], [1.0] * 5, 2),
        ([0, 5, 10, 15], [1.0, None, 1.0, 1.0], 2),
        ([0, 5], [None, None], 0),
        ([0], [1.0], 1),
    ],
)
def test_curve_is_interrupted_where_nothing_is_known(
    offsets: list[float], cpu: list[float | None], stretches: int
) -> None:
    (line,) = charts(offsets, cpu=cpu)["CPU"].lines
    assert len(points(line.path)) == stretches


def test_chart_shows_the_current_use_the_allocation_and_the_peak() -> None:
    drawn = charts([0, 5], cpu=[3.25, 1.5], memory_bytes=[2 * GB, GB])
    assert (drawn["CPU"].now, drawn["CPU"].most) == ("1.5 of 4 cores", "at most 3.2")
    assert (drawn["Memory"].now, drawn["Memory"].most) == ("1.0 GB of 8.0 GB", "at most 2.0 GB")
    assert charts([0], cpu=[None])["CPU"].now == "not known now"
    assert charts([0], cpus=0)["CPU"].now == "1.0 cores"


def test_limit_of_memory_is_drawn_where_the_use_comes_near_it() -> None:
    far = charts([0, 5], memory_bytes=[GB // 2, GB // 2])["Memory"]
    near = charts([0, 5], memory_bytes=[GB, 6 * GB])["Memory"]
    assert far.limit is None
    assert points(far.lines[0].path)[0][0][1] > HEIGHT / 2, "and it is drawn far below the top"
    assert near.limit is not None
    assert 0 < near.limit < HEIGHT
    ((_, last),) = points(near.lines[0].path)
    assert last[1] > near.limit, "what is used is below it"


def test_devices_are_curves_of_one_chart() -> None:
    gpus = {
        "GPU-a": GpuSeries(utilization=(0.5, 0.9), memory_bytes=(GB, GB), memory_total=16 * GB),
        "GPU-b": GpuSeries(utilization=(None, 0.1), memory_bytes=(None, 3 * GB), memory_total=16 * GB),
    }
    drawn = charts([0, 5], gpus=gpus)
    assert list(drawn) == ["CPU", "Memory", "GPU busy", "GPU memory"]
    assert drawn["GPU busy"].now == "mean 50%"
    assert [line.name for line in drawn["GPU busy"].lines] == ["GPU 0", "GPU 1"]
    assert [line.values for line in drawn["GPU busy"].lines] == ["0.5,0.9", ",0.1"]
    assert drawn["GPU memory"].now == "mean 2.0 GB of 16.0 GB"
