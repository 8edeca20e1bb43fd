"""The figures of an installation in the format of Prometheus and OpenMetrics.

Jobs, agents, notifications and storage are read at each scrape. Durations and counts are of this process since its
start: of several servers each is scraped, and each has its own.
"""

import os
import shutil
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

from trainyard_protocol.states import JobState, Reason
from trainyard_server.capabilities.monitoring import store
from trainyard_server.context import Backend
from trainyard_server.storage.observations import DurationHistogram

if TYPE_CHECKING:
    from prometheus_client.metrics_core import HistogramMetricFamily, Metric

MOST_PROJECTS = 100
MOST_AGENTS = 1000
MOST_GPUS = 2000
"""Label values of one metric; the rest of the projects is `other`."""

_OTHER = "other"


class Exposition:
    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def render(self, accept: str) -> tuple[bytes, str]:
        """The figures, and their content type: OpenMetrics for those who accept it, else Prometheus' own format."""
        from prometheus_client.exposition import choose_encoder
        from prometheus_client.registry import CollectorRegistry

        registry = CollectorRegistry(auto_describe=False)
        registry.register(self)
        encode, content_type = choose_encoder(accept)
        return encode(registry), content_type

    def describe(self) -> Sequence["Metric"]:
        """Nothing: the names of this collector do not have to be checked against others."""
        return ()

    def collect(self) -> Iterator["Metric"]:
        """The figures of this moment."""
        yield from self._jobs()
        yield from self._agents()
        yield from self._of_capabilities()
        yield from self._process()
        yield from self._storage()

    def _jobs(self) -> Iterator["Metric"]:
        from prometheus_client.core import GaugeMetricFamily

        with self._backend.store.read() as reader:
            counts = store.jobs_by_state(reader)
        by_project: Counter[str] = Counter()
        for project, _, count in counts:
            by_project[project] += count
        named = {project for project, _ in by_project.most_common(MOST_PROJECTS)}
        jobs: Counter[tuple[str, str]] = Counter()
        for project, state, count in counts:
            jobs[state, project if project in named else _OTHER] += count
        family = GaugeMetricFamily("trainyard_jobs", "Jobs, trials among them.", labels=("state", "project"))
        for (state, project), count in sorted(jobs.items()):
            family.add_metric((state, project), count)
        yield family
        queued = sum(count for (state, _), count in jobs.items() if state == JobState.QUEUED)
        yield GaugeMetricFamily("trainyard_queued_jobs", "Jobs that wait for a run.", value=queued)

    def _agents(self) -> Iterator["Metric"]:
        from prometheus_client.core import GaugeMetricFamily

        with self._backend.store.read() as reader:
            agents = store.agents(reader)
        contact = GaugeMetricFamily(
            "trainyard_agent_last_contact_seconds", "Time since an agent has called.", labels=("agent",)
        )
        alive = GaugeMetricFamily("trainyard_agents", "Agents.", labels=("state",))
        states: Counter[str] = Counter()
        for agent in agents:
            is_alive = self._backend.agent_liveness.is_alive(agent)
            states["draining" if agent.draining else "alive" if is_alive else "silent"] += 1
        for agent in agents[:MOST_AGENTS]:
            contact.add_metric((agent.name,), round(self._backend.agent_liveness.silent_s(agent), 3))
        for state in ("alive", "draining", "silent"):
            alive.add_metric((state,), states[state])
        yield contact
        yield alive
        gpus = GaugeMetricFamily(
            "trainyard_gpu_usage_ratio", "Use of a GPU that a job holds, 0 to 1.", labels=("agent", "gpu", "job")
        )
        for gpu in self._backend.observations.gpus[:MOST_GPUS]:
            gpus.add_metric((gpu.agent, gpu.gpu, gpu.job), gpu.utilization)
        yield gpus

    def _of_capabilities(self) -> Iterator["Metric"]:
        from prometheus_client.core import GaugeMetricFamily

        for capability in self._backend.capabilities:
            for figure in capability.figures(self._backend):
                family = GaugeMetricFamily(figure.name, figure.text, labels=(figure.label,))
                for value, count in figure.counts.items():
                    family.add_metric((value,), count)
                yield family

    def _process(self) -> Iterator["Metric"]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        seen = self._backend.observations
        yield _histogram("trainyard_queue_wait_seconds", "From submission to the first run.", seen.queue_waits)
        yield _histogram("trainyard_start_seconds", "From the placement of a run until all replicas run.", seen.starts)
        ends = CounterMetricFamily("trainyard_runs", "Runs that have ended.", labels=("end_reason",))
        for reason in Reason:  # also those at 0: Prometheus sees no increase in a series that begins above it
            ends.add_metric((reason,), seen.run_ends.get(reason, 0))
        yield ends
        yield _histogram("trainyard_scheduler_round_seconds", "Duration of a round of the scheduler.", seen.rounds)
        age = time.monotonic() - seen.round_at
        yield GaugeMetricFamily("trainyard_scheduler_last_round_seconds", "Time since the last round.", value=age)
        requests = _family("trainyard_request_seconds", "Duration of a request.", ("class",))
        for route_class, histogram in sorted(seen.requests.items()):
            _add(requests, (route_class,), histogram)
        yield requests
        yield CounterMetricFamily("trainyard_log_lines", "Lines of jobs that were stored.", value=seen.log_lines)

    def _storage(self) -> Iterator["Metric"]:
        from prometheus_client.core import GaugeMetricFamily

        data_dir = self._backend.settings.data_dir
        with self._backend.store.read() as reader:
            size = store.database_bytes(reader)
        usage = shutil.disk_usage(data_dir)
        yield GaugeMetricFamily("trainyard_database_bytes", "Size of the database.", value=size)
        yield GaugeMetricFamily("trainyard_data_free_bytes", "Free on the disk of the data.", value=usage.free)
        yield GaugeMetricFamily("trainyard_data_disk_bytes", "Size of the disk of the data.", value=usage.total)
        yield GaugeMetricFamily("trainyard_process_start_time_seconds", "Start of the server.", value=_started_at())


def _family(name: str, text: str, labels: Sequence[str] = ()) -> "HistogramMetricFamily":
    from prometheus_client.core import HistogramMetricFamily

    return HistogramMetricFamily(name, text, labels=labels)


def _histogram(name: str, text: str, histogram: DurationHistogram) -> "HistogramMetricFamily":
    family = _family(name, text)
    _add(family, (), histogram)
    return family


def _add(family: "HistogramMetricFamily", labels: Sequence[str], histogram: DurationHistogram) -> None:
    state = histogram.state
    bounds = [*map(str, histogram.bounds), "+Inf"]
    family.add_metric(labels, list(zip(bounds, accumulate(state.counts), strict=True)), state.total)


def _started_at() -> float:
    import psutil

    return float(psutil.Process(os.getpid()).create_time())
