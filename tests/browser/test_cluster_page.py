"""The cluster page: agents and the queue."""

from datetime import UTC, datetime
from typing import Any

import pytest
from playwright.sync_api import expect

from browser.browser_support import T4, DashboardServer, Open, axe
from integration.api.api_support import GB
from trainyard_protocol.answers.usage import GpuUsage, UsageSample
from trainyard_protocol.wire.sync import RunOrder

TWO_GPUS: dict[str, Any] = {
    "masterType": "n1-standard-4",
    "masterConfig": {"acceleratorConfig": {"type": T4, "count": "2"}},
}


def samples(run: RunOrder, cpu: float, memory_bytes: int, busy: float = 0.0) -> list[UsageSample]:
    """Usage of all replicas of a run."""
    return [
        UsageSample(
            run_id=run.run_id,
            task=replica.task,
            time=datetime.now(UTC),
            cpu=cpu,
            memory_bytes=memory_bytes,
            gpus=tuple(
                GpuUsage(id=gpu, utilization=busy, memory_bytes=9 * GB, memory_total=16 * GB) for gpu in replica.gpus
            ),
        )
        for replica in run.replicas
    ]


@pytest.fixture
def busy(dashboard: DashboardServer) -> DashboardServer:
    """Two machines, two jobs that run, and three that wait."""
    laptop, box = dashboard.agent(cpus=4, memory_gb=16), dashboard.gpu_box()
    digits = dashboard.started(laptop, "digits_baseline", workerType="local-1", workerCount="1")
    trains = dashboard.started(box, "resnet50_gpus", **TWO_GPUS)
    dashboard.report(*samples(digits, 0.62, 310_000_000), *samples(trains, 3.4, 6 * GB, busy=0.93))
    dashboard.submit("needs_four", **{**TWO_GPUS, "masterConfig": {"acceleratorConfig": {"type": T4, "count": "4"}}})
    dashboard.submit("needs_many", masterType="n1-standard-96", project="research")
    dashboard.submit("patient", masterType="n1-standard-16", scheduling={"priority": 5})
    dashboard.api.use_cases.controller.tick()
    return dashboard


def test_machines_and_queue_are_shown_and_followed(busy: DashboardServer, open_page: Open) -> None:
    page = open_page("/cluster")
    box, laptop = (page.get_by_role("article", name=f"Agent {name}") for name in ("gpu-box", "laptop"))
    gpus = page.get_by_role("region", name="GPUs of gpu-box").locator("tbody tr")
    queue = page.locator(".queue [data-row]")
    held, free = gpus.filter(has_text="resnet50_gpus"), gpus.filter(has_text="free")
    for rows, count in ((gpus, 4), (held, 2), (free, 2), (queue, 3)):
        expect(rows).to_have_count(count)
    for place, text in (
        (box.get_by_role("row", name="resnet50_gpus master-replica-0").first, "93 %"),
        (held.first, "master-replica-0"),
        (held.first, "9.0 GB of 16.0 GB"),
        (laptop, "2 of 4 allocated, 1.2 busy"),
        (laptop, "620 MB used"),
        (laptop.get_by_role("row", name="digits_baseline"), "1.2 of 2"),
        (queue.first, "patient"),
        (queue.filter(has_text="needs_four"), "4 x NVIDIA_TESLA_T4"),
        (queue.filter(has_text="needs_many"), "research"),
    ):
        expect(place).to_contain_text(text)
    queue.first.locator("summary").click()
    expect(page.get_by_text("It would start now with any one of:")).to_be_visible()

    with busy.api.use_cases.backend.store.read() as reader:
        run_id = next(run.run_id for run in reader.live_runs("id-of-gpu-box"))
    now = {"run_id": run_id, "task": "master-replica-0", "time": datetime.now(UTC), "cpu": 1.0}
    used = tuple(GpuUsage(id=f"GPU-gpu-box-{n}", utilization=0.41) for n in range(2))
    busy.report(UsageSample(**now, gpus=used))
    expect(box).to_contain_text("41 %")
    busy.gpu_box("second-box", gpus=1)
    expect(page.get_by_role("article", name="Agent second-box")).to_be_visible()
    expect(page.get_by_role("list", name="At a glance")).to_contain_text("3 agents alive")
    held.first.get_by_role("link", name="resnet50_gpus").click()
    expect(page).to_have_url(f"{busy.url}/projects/p/jobs/resnet50_gpus")


def test_row_of_the_queue_unfolds_to_holders_and_the_smallest_change(busy: DashboardServer, open_page: Open) -> None:
    page = open_page("/cluster")
    row = page.locator(".queue [data-row]").filter(has_text="patient")
    row.locator("summary").click()
    expect(row.get_by_role("table", name="Who holds it")).to_contain_text("resnet50_gpus")
    expect(row.get_by_role("table", name="Agents")).to_contain_text("gpu-box")
    expect(row.get_by_role("listitem").first).to_be_visible()
    # It stays unfolded while the page is updated.
    busy.submit("one_more", masterType="n1-standard-32")
    expect(page.locator(".queue [data-row]")).to_have_count(4)
    expect(row.get_by_role("table", name="Who holds it")).to_be_visible()


def test_silent_agent_is_marked(dashboard: DashboardServer, open_page: Open) -> None:
    laptop = dashboard.agent()
    dashboard.started(laptop, "alone")
    dashboard.agent("was-here-once")
    for agent in ("id-of-laptop", "id-of-was-here-once"):
        seen = dashboard.api.use_cases.backend.agent_liveness._seen
        seen[agent] = type(seen[agent])(seen[agent].heartbeats, seen[agent].at, stale=True)
    page = open_page("/cluster")
    card = page.get_by_role("article", name="Agent laptop")
    expect(card).to_contain_text("silent")
    expect(card).to_contain_text("No run starts here until the agent answers again")
    expect(page.get_by_text("1 silent agent without runs")).to_be_visible()
    expect(page.get_by_role("list", name="At a glance")).to_contain_text("0 agents alive")


def test_empty_cluster_shows_what_to_do_next(dashboard: DashboardServer, open_page: Open) -> None:
    page = open_page("/cluster")
    expect(page.get_by_role("heading", name="No agent yet")).to_be_visible()
    expect(page.get_by_text("trainyard up", exact=True)).to_be_visible()
    expect(page.get_by_text(f"trainyard agent join {dashboard.url}")).to_be_visible()
    expect(page.get_by_text("The queue is empty.")).to_be_visible()
    assert axe(page) == []
