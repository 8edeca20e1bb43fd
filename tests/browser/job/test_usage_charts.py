"""Usage charts on the page of a job."""

import math
import re
from datetime import UTC, datetime, timedelta

import pytest
from playwright.sync_api import expect

from browser.browser_support import T4, DashboardServer, Open
from integration.api.api_support import GB
from trainyard_protocol.answers.usage import GpuUsage, UsageSample
from trainyard_protocol.wire.sync import RunOrder

PATH = "/projects/p/jobs/resnet50"


def sample(run: RunOrder, task: str, at: datetime, cpu: float, memory: float, busy: float = 0.0) -> UsageSample:
    gpus = next(replica.gpus for replica in run.replicas if replica.task == task)
    return UsageSample(
        run_id=run.run_id,
        task=task,
        time=at,
        cpu=cpu,
        memory_bytes=round(memory * GB),
        gpus=tuple(
            GpuUsage(id=gpu, utilization=max(0.0, busy - n / 10), memory_bytes=(9 + n) * GB, memory_total=16 * GB)
            for n, gpu in enumerate(gpus)
        ),
    )


@pytest.fixture
def run(dashboard: DashboardServer) -> RunOrder:
    """A running gang with GPUs, and its usage of the last 20 minutes with a gap. Samples that a test adds are late
    enough for a point of their own."""
    agent = dashboard.gpu_box()
    two = {"acceleratorConfig": {"type": T4, "count": "2"}}
    gang = {"masterType": "n1-standard-4", "workerType": "local-4", "workerCount": "1"}
    order = dashboard.started(agent, "resnet50", masterConfig=two, **gang)
    now = datetime.now(UTC)
    used = []
    for n in range(240):
        if 120 <= n < 140:
            continue
        at, wave = now - timedelta(seconds=5 * (243 - n)), math.sin(n / 9)
        used += [
            sample(order, "master-replica-0", at, 2.6 + wave, 4 + n / 40, busy=0.8 + 0.15 * wave),
            sample(order, "worker-replica-0", at, 0.5 + 0.3 * math.cos(n / 5), 0.4),
        ]
    dashboard.report(*used)
    return order


def test_usage_over_time_is_drawn_with_the_current_value_and_the_allocation(
    dashboard: DashboardServer, run: RunOrder, open_page: Open
) -> None:
    page = open_page(PATH)
    charts = page.locator("#live-usage")
    expect(charts.get_by_role("heading", name="Resource usage")).to_be_visible()
    expect(charts.locator("figure")).to_have_count(6)
    charts.scroll_into_view_if_needed()
    curve = page.get_by_role("group", name="CPU of worker-replica-0").locator(".curve")
    assert (curve.get_attribute("d") or "").count("M") == 2, "one stretch before the gap, one after it"
    dashboard.report(sample(run, "master-replica-0", datetime.now(UTC), 3.2, 12.5, busy=0.9))
    chief = page.get_by_role("group", name="CPU of master-replica-0", exact=True)
    expect(chief).to_contain_text("3.2 of 4 cores")
    expect(page.get_by_role("group", name="Memory of master-replica-0", exact=True)).to_contain_text(
        "12.5 GB of 15.0 GB"
    )
    busy = page.get_by_role("group", name="GPU busy of master-replica-0")
    expect(busy).to_contain_text("mean 85%")
    expect(busy.locator(".curve")).to_have_count(2)
    expect(page.get_by_role("group", name=re.compile("GPU .* of worker-replica-0"))).to_have_count(0)


def test_value_under_the_pointer_and_under_the_arrow_keys(
    dashboard: DashboardServer, run: RunOrder, open_page: Open
) -> None:
    page = open_page(PATH)
    chart = page.get_by_role("group", name="Memory of master-replica-0", exact=True)
    chart.scroll_into_view_if_needed()
    box = chart.locator("svg").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + 1, box["y"] + 20)
    value = chart.get_by_role("status")
    expect(value).to_contain_text(re.compile(r"^4\.\d GB · \d\d:\d\d:\d\d"))
    first = value.inner_text()
    # It stays while new measurements arrive.
    dashboard.report(sample(run, "master-replica-0", datetime.now(UTC), 3.9, 14.0))
    expect(chart.locator(".chart-most")).to_contain_text("at most 14.0 GB")
    expect(value).to_have_text(first)
    page.mouse.move(5, 5)
    expect(value).to_be_hidden()
    expect(chart.locator(".chart-now")).to_have_text("14.0 GB of 15.0 GB")
    chart.focus()
    page.keyboard.press("Home")
    expect(value).to_contain_text("4.0 GB")
    page.keyboard.press("End")
    expect(value).to_contain_text("14.0 GB")
    page.keyboard.press("ArrowLeft")
    expect(value).to_contain_text("10.0 GB")
