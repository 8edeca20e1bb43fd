"""A cluster whose gangs Kueue admits, from its API to what a user sees: real server, agent and runtime."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from beds.fake_cluster import NAMESPACE, FakeCluster, fake_cluster
from beds.world import World
from trainyard_agent.engines.fake import FOREVER
from trainyard_agent.engines.kubernetes.capacity import admission
from trainyard_agent.engines.kubernetes.capacity.admission import LocalQueue, choose
from trainyard_agent.engines.kubernetes.pods import objects
from trainyard_agent.engines.kubernetes.runtime import KubernetesRuntime
from trainyard_protocol.job.resources import Capacity, Pool
from trainyard_protocol.states import JobState, Reason
from trainyard_protocol.wire.agents import CLUSTER

FULL = "couldn't assign flavors to pod set main: insufficient unused quota for cpu in flavor default, 2 more needed"
PODS, API = f"/api/v1/namespaces/{NAMESPACE}/pods", f"/apis/kueue.x-k8s.io/v1beta2/namespaces/{NAMESPACE}"


class Kueue:
    """Kueue and a kubelet, as far as plain pod groups see them. `step` lets each do what is due."""

    def __init__(self, api: FakeCluster) -> None:
        self._api = api
        api.groups = {"kueue.x-k8s.io/v1beta2": ["workloads"]}
        api.webhook = self._hold

    @staticmethod
    def _hold(path: str, body: dict[str, Any]) -> None:
        if path == PODS:
            body["metadata"]["labels"][admission.MANAGED] = "true"
            body["metadata"]["finalizers"].append(admission.MANAGED)
            body["spec"]["schedulingGates"] = [{"name": "kueue.x-k8s.io/admission"}]

    def group(self, name: str) -> dict[str, dict[str, Any]]:
        return {
            path: one
            for path, one in list(self._api.objects.items())
            if path.startswith(PODS) and one["metadata"]["labels"][admission.GROUP] == name
        }

    @property
    def groups(self) -> set[str]:
        pods = [one for path, one in list(self._api.objects.items()) if path.startswith(PODS)]
        return {one["metadata"]["labels"][admission.GROUP] for one in pods}

    def step(self) -> None:
        for name in self.groups:
            pods = self.group(name).values()
            total = {one["metadata"]["annotations"][admission.TOTAL] for one in pods}
            if total == {str(len(pods))} and f"{API}/workloads/{name}" not in self._api.objects:
                waits = {"type": "QuotaReserved", "status": "False", "reason": "Pending", "message": FULL}
                workload = {"metadata": {"name": name}, "spec": {}, "status": {"conditions": [waits]}}
                self._api.create(f"{API}/workloads", workload)
        for path, pod in list(self._api.objects.items()):
            if path.startswith(PODS):
                self._run(pod)

    def _run(self, pod: dict[str, Any]) -> None:
        state: dict[str, Any] = {"running": {"startedAt": "2026-01-01T10:00:00Z"}}
        phase = "Running"
        if pod["metadata"].get("deletionTimestamp"):
            phase = "Failed"
            state = {"terminated": {"exitCode": 137, "finishedAt": "2026-01-01T10:00:05Z"}}
        if not pod["spec"].get("schedulingGates") and pod["status"].get("phase") != phase:
            containers = [{"name": objects.CONTAINER, "state": state}]
            self._api.set_status(pod["metadata"]["name"], phase=phase, containerStatuses=containers)

    def admit(self, name: str) -> None:
        conditions = [{"type": kind, "status": "True"} for kind in ("QuotaReserved", "Admitted")]
        self._api.patch(f"{API}/workloads/{name}", {"status": {"conditions": conditions}})
        for path in self.group(name):
            self._api.patch(path, {"spec": {"schedulingGates": None, "nodeName": "n"}})

    def evict(self, name: str) -> None:
        reason = {"reason": "WorkloadEvictedDueToPreempted", "message": "Preempted to accommodate a workload"}
        for path in self.group(name):
            conditions = [{"type": "TerminationTarget", "status": "True", **reason}]
            self._api.patch(path, {"status": {"conditions": conditions}})
            self._api.delete(path)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    world = World(tmp_path)
    yield world
    await world.close()


async def test_kueue_decides_among_a_few_runs_and_its_words_are_shown(world: World, tmp_path: Path) -> None:
    with fake_cluster() as api:
        kueue, client = Kueue(api), api.client()
        queue = choose(client, "team-a", {})
        assert isinstance(queue, LocalQueue)
        queue.clock = world.clock.monotonic
        runtime = KubernetesRuntime(tmp_path / "agent", client, objects.PodOwner("a"), queue)
        machine = world.machine("cluster", lambda _: FOREVER)
        capacity = Capacity.of_pools(Pool(nodes=2, vcpus=1, memory_bytes=4 * 10**9))
        changes = {"kind": CLUSTER, "capacity": capacity, "runs_images": True, "in_flight": 1}
        machine.info, machine.runtime = machine.info.model_copy(update=changes), runtime
        machine.boot()

        async def until(condition: Callable[[], Awaitable[bool]]) -> None:
            """Changes in the cluster reach the agent by a watch, in a thread."""
            async with asyncio.timeout(60):
                while not await condition():
                    kueue.step()
                    world.clock.advance(6)
                    await world.settle(2)
                    await asyncio.sleep(0.01)

        async def states(*wanted: JobState) -> bool:
            return [(await world.detail(job_id)).state for job_id in ("first", "second")] == list(wanted)

        async def says(job_id: str, reason: str) -> bool:
            answer = await world.call("GET", f"/trainyard/v1/projects/p/jobs/{job_id}/why")
            return reason in answer.json()["summary"]

        async def has_groups(count: int) -> bool:
            return len(kueue.groups) == count

        async def is_gone(name: str) -> bool:
            return name not in kueue.groups

        try:
            await world.settle()
            for job_id in ("first", "second"):
                await world.submit(job_id, workers=1)
            await until(lambda: says("first", f"waits: in the LocalQueue team-a: {FULL}"))
            assert await says("second", "1 run waits in the own queue of agent cluster")
            world.clock.advance(10_000)  # no start deadline
            await world.settle()
            assert await states(JobState.PREPARING, JobState.QUEUED)
            (first,) = kueue.groups

            # A run that was admitted makes way for the next, however full the nodes are.
            kueue.admit(first)
            await until(lambda: states(JobState.RUNNING, JobState.PREPARING))
            await until(lambda: has_groups(2))
            (second,) = kueue.groups - {first}

            kueue.admit(second)
            kueue.evict(first)
            await until(lambda: states(JobState.PREPARING, JobState.RUNNING))
            detail = await world.detail("first")
            verdict = detail.runs[0].verdict
            assert verdict is not None
            assert verdict.reason is Reason.PREEMPTED
            assert "Preempted to accommodate a workload." in verdict.message
            assert not [event for event in detail.events if "retry" in event.message]
            await until(lambda: is_gone(first))

            for job_id in ("first", "second"):
                await world.cancel(job_id)
            await until(lambda: states(JobState.CANCELLED, JobState.CANCELLED))
            await until(lambda: has_groups(0))
        finally:
            runtime.close()
            client.close()
