"""Row of the start of a gang over several agents, as these call the server for it."""

import json
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count

from benchmarks.rows import Row, Samples, interleaved
from benchmarks.scale.bed import CPUS, PROJECT, ServerBed, agent_info, bed
from trainyard_protocol.states import ReplicaState
from trainyard_protocol.wire.sync import ReplicaReport, RunOrder, RunReport

_FEW, _MANY = 4, 32
_A_PART = 4
"""Replicas on each machine."""

_numbers = count(1)


class _Gangs:
    """Gangs that have all machines of a server."""

    def __init__(self, server: ServerBed, agents: int) -> None:
        self._server = server
        self._infos = [
            agent_info(n).model_copy(update={"address": f"10.0.0.{n}", "group": "default"}) for n in range(agents)
        ]
        for number in range(agents):
            server.sync(number, info=self._infos[number])

    def start(self) -> float:
        """Milliseconds of the server's CPU for each machine, from the submission until all replicas run."""
        job = f"gang_{next(_numbers)}"
        machine = f"n1-standard-{CPUS // _A_PART}"
        gang = {"scaleTier": "CUSTOM", "masterType": machine, "workerType": machine, "jobDir": "gs://bucket/job"}
        workers = {"workerCount": str(_A_PART * len(self._infos) - 1), "pythonModule": "trainer.task"}
        began = time.process_time()
        self._server.post(f"/v1/projects/{PROJECT}/jobs", json.dumps({"jobId": job, "trainingInput": gang | workers}))
        self._server.tick()
        self._sync_until_started()
        used = time.process_time() - began
        self._server.post(f"/v1/projects/{PROJECT}/jobs/{job}:cancel", "{}")
        for number, info in enumerate(self._infos):
            self._server.sync(number, info=info)
        return used * 1000 / len(self._infos)

    def _sync_until_started(self) -> None:
        """An agent calls when it has something to say, and its held call is answered when another has."""
        reports: dict[int, RunReport] = {}
        calling = deque(range(len(self._infos)))
        started = set[int]()
        while len(started) < len(self._infos):
            number = calling.popleft()
            given = (reports[number],) if number in reports else ()
            (order,) = self._server.sync(number, given, info=self._infos[number]).runs
            report = _report(number, order)
            if report != reports.get(number):
                reports[number] = report
                calling.append(number)
                calling += [other for other in range(len(self._infos)) if other not in calling]
            elif order.spread is not None and order.spread.starts:
                started.add(number)


def _report(number: int, order: RunOrder) -> RunReport:
    """The next report of an agent: the addresses of its part, that the others are reached, and that it runs."""
    assert order.spread is not None
    state = ReplicaState.RUNNING if order.spread.starts else ReplicaState.PENDING
    replicas = tuple(
        ReplicaReport(task=replica.task, state=state, address=f"10.0.0.{number}:{30_000 + n}")
        for n, replica in enumerate(order.replicas)
    )
    return RunReport(run_id=order.run_id, replicas=replicas, ready=bool(order.spread.addresses), runtime="process")


@contextmanager
def _gangs(agents: int) -> Iterator[_Gangs]:
    with bed() as server:
        yield _Gangs(server, agents)


def _start(quick: bool) -> Samples:
    with _gangs(_MANY) as many, _gangs(_FEW) as few:
        return interleaved(many.start, few.start, 2 if quick else 7, "ms")


ROWS: Sequence[Row] = (
    Row(
        "gang-machines",
        f"the start of a gang over {_MANY} machines, {_A_PART} replicas on each: CPU of the server by machine",
        f"the same over {_FEW}",
        2.0,
        _start,
        bound="each part has the addresses of all, and is called when another has news",
    ),
)
