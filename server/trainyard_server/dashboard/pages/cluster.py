"""Cluster page: the agents with their resources and runs, quotas, and the queue."""

from collections.abc import Mapping
from typing import Any

from fastapi import Request

from trainyard_protocol.states import JobState
from trainyard_server.api.dependencies import Cases, caller_of
from trainyard_server.api.routing import Router
from trainyard_server.dashboard.views import View, add_page
from trainyard_server.domain.access.route_access import Access
from trainyard_server.domain.scheduling.quotas import GPUS, JOBS, VCPUS
from trainyard_server.services.views.cluster import QUEUE_PAGE, AgentLine, ClusterView
from trainyard_server.storage.events.notifier import AGENTS_TOPIC, JOBS_TOPIC, USAGE_TOPIC, WAITING_TOPIC

router = Router()

_SHOWN_RUNS = 25
_COUNTED = {
    JobState.RUNNING: "running",
    JobState.PREPARING: "being prepared",
    JobState.CANCELLING: "being cancelled",
    JobState.QUEUED: "queued",
}
_WORDS = {JOBS: "running jobs", VCPUS: "vCPUs", GPUS: "GPUs"}


def cluster_view(request: Request, cases: Cases, page: int = 1) -> View:
    server = str(request.base_url).rstrip("/")
    visible = caller_of(request).visible

    def read() -> Mapping[str, Any]:
        cluster = cases.cluster.page(visible, page)
        return {
            "absent": [line for line in cluster.agents if not _is_shown(line)],
            "agents": [line for line in cluster.agents if _is_shown(line)],
            "cluster": cluster,
            "counted": [(_COUNTED[state], state, cluster.counts.get(state, 0)) for state in _COUNTED],
            "first": (cluster.page - 1) * QUEUE_PAGE + 1,
            "gpus": _gpus(cluster),
            "quota_words": _WORDS,
            "server": server,
            "shown_runs": _SHOWN_RUNS,
        }

    return View("cluster.html", read, (JOBS_TOPIC, AGENTS_TOPIC), (USAGE_TOPIC, WAITING_TOPIC))


def _is_shown(line: AgentLine) -> bool:
    """False for a silent agent without a run: it is listed apart."""
    return line.view.alive or bool(line.runs) or bool(line.hidden_runs)


def _gpus(cluster: ClusterView) -> tuple[int, int]:
    """Allocated devices and all devices, of the agents that are alive."""
    alive = [line.view for line in cluster.agents if line.view.alive]
    held = sum(view.accelerators_given for view in alive)
    return held, sum(view.capacity.accelerators.total() for view in alive)


add_page(router, "/cluster", Access.PERSON, "the agents and the queue", cluster_view)
