"""The kubernetes runtime: every replica is a bare Pod, and what must be remembered is in the cluster's objects.

An agent that dies loses nothing but its copies of logs, which the next one reads again.
"""

import base64
import json
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from trainyard_agent.engines.kubernetes.api.client import KubeClient, KubeError, KubeObject
from trainyard_agent.engines.kubernetes.capacity.admission import GangAdmission, NotAdmitted
from trainyard_agent.engines.kubernetes.capacity.metrics import PodMetrics
from trainyard_agent.engines.kubernetes.logs.log_copies import LogCopies
from trainyard_agent.engines.kubernetes.logs.logs import LogSource, line_time
from trainyard_agent.engines.kubernetes.pods import objects, peers
from trainyard_agent.engines.kubernetes.pods.attachments import end_left, exec_in_pod, port_of_pod
from trainyard_agent.engines.kubernetes.pods.ends import EndOrder
from trainyard_agent.engines.kubernetes.pods.objects import (
    EXIT,
    LAUNCHED,
    MADE,
    ORDER,
    STOP,
    PodOwner,
    PodParts,
    pod_name,
    run_name,
)
from trainyard_agent.engines.kubernetes.pods.removal import NotRemoved, PodRemoval
from trainyard_agent.engines.kubernetes.pods.status import (
    PodState,
    exit_of,
    has_begun,
    is_taken_away,
    start_time,
    state_of,
)
from trainyard_agent.engines.kubernetes.pods.watch import PodWatch
from trainyard_agent.engines.kubernetes.staging import installation
from trainyard_agent.engines.kubernetes.staging.installation import Installation
from trainyard_agent.host.subscribers import Subscribers
from trainyard_agent.runtimes.attaching.attachment import Attachment, NotAttachable
from trainyard_agent.runtimes.base import GONE, STOPPED, Handle, Launch, LogSlice, StartFailed, Traits, metric_tag
from trainyard_agent.runtimes.exits import never_ran, stopped_exit
from trainyard_agent.runtimes.use import ReplicaUse
from trainyard_protocol.states import Reason, ReplicaState
from trainyard_protocol.wire.agents import RuntimeName
from trainyard_protocol.wire.attachments import Terminal
from trainyard_protocol.wire.logs import LogPosition
from trainyard_protocol.wire.sync import ReplicaReport, RunOrder

_NO_ENTRY_POINT = (
    "keepOnFailure needs containerCommand on Kubernetes, where the entry point of an image is not known: name the "
    "program in masterConfig.containerCommand (and in those of the other replicas)."
)
_CALLS = 16  # at once, for the pods of a gang
_UNADMITTED = GangAdmission()
_RETRY_S = 3.0
_WHOLE, _MESSAGE = 20, 200
"""So many ends of a run have whole messages, and the others so many characters: a thousand fit into its root."""

_UNSTARTED = (Reason.IMAGE_FAILED, Reason.START_FAILED, Reason.PACKAGES_FAILED, Reason.REFUSED)

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Run:
    """A run as its root has it."""

    order: RunOrder
    uid: str
    annotations: dict[str, str]
    exits: dict[str, ReplicaReport] = field(default_factory=dict)
    ends: EndOrder = field(default_factory=EndOrder)
    unmade: tuple[Reason, str] = (Reason.HOST_FAILED, "The agent ended before it made its pod.")
    """The end of pods that were not made."""

    @classmethod
    def of(cls, root: KubeObject) -> "_Run":
        metadata, data = root["metadata"], root["data"]
        exits = {
            name.removeprefix(EXIT): ReplicaReport.model_validate_json(text)
            for name, text in data.items()
            if name.startswith(EXIT)
        }
        order = RunOrder.model_validate_json(data[ORDER])
        return cls(order, metadata["uid"], metadata.get("annotations") or {}, exits)

    @property
    def launched(self) -> bool:
        return LAUNCHED in self.annotations

    @property
    def tasks(self) -> list[str]:
        return [replica.task for replica in self.order.replicas]

    @property
    def stopped(self) -> tuple[Reason, frozenset[str]]:
        """The reason of its stop, and the replicas that had not ended by then; none: it was not stopped."""
        stop = json.loads(self.annotations.get(STOP) or '{"reason": "STOPPED", "tasks": []}')
        return Reason(stop["reason"]), frozenset(stop["tasks"])

    def handle(self) -> Handle:
        return Handle(
            run_id=self.order.run_id,
            runtime=KubernetesRuntime.name,
            addresses=objects.addresses(self.order),
            grace_s=self.order.grace_s,
            metric_tag=metric_tag(self.order),
            launched=self.launched,
        )


class KubernetesRuntime:
    name: RuntimeName = "kubernetes"

    def __init__(
        self,
        state_dir: Path,
        client: KubeClient,
        owner: PodOwner,
        admission: GangAdmission = _UNADMITTED,
        measures_usage: bool = False,
        init_image: str = "",
    ) -> None:
        """`state_dir` is for copies of logs alone. `admission` lets the pods of a run start together. `measures_usage`:
        the API metrics.k8s.io is there. `init_image`: one with python3, for what runs before programs."""
        self._init_image = init_image
        self._client, self._owner, self._admission = client, owner, admission
        self._metrics = PodMetrics(client, owner.selector)
        self.traits = Traits(
            starts_whole=False,
            coarse_clock=True,
            splits_streams=False,
            keeps_logs=False,
            measures_usage=measures_usage,
            reads_metrics=False,
        )
        self._logs = LogCopies(client, state_dir / "pods")
        self._lock = threading.RLock()
        self._runs: dict[str, _Run] = {}
        self._pool = ThreadPoolExecutor(_CALLS, thread_name_prefix="kubernetes")
        self._closing = threading.Event()
        self._abandoned: set[str] = set()
        self._subscribers = Subscribers()
        self._watch = PodWatch(client, owner.selector, lambda _: self._subscribers.call())
        self._removal = PodRemoval(client, owner, self._watch, self._pool)
        self._watch.start()

    def close(self) -> None:
        """Stop reading. The pods go on."""
        self._closing.set()
        self._watch.close()
        self._logs.close()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def recover(self) -> list[Handle]:
        roots, _ = self._client.list("configmaps", self._owner.selector)
        runs = {
            root["metadata"]["labels"][objects.RUN]: _Run.of(root)
            for root in roots
            if ORDER in (root.get("data") or {})
        }
        with self._lock:
            self._runs = runs
        pods, _ = self._client.list("pods", self._owner.selector)
        for pod in pods:
            self._watch.put(pod)
            if has_begun(pod) and exit_of(pod) is None:
                end_left(self._client, pod, self._pool)
        unwanted = {run_id for run_id, run in runs.items() if not run.launched}
        of_pods = {pod["metadata"]["labels"][objects.RUN] for pod in pods}
        unwanted |= of_pods - runs.keys()
        self._logs.keep(runs.keys() | of_pods)
        for run_id in unwanted:
            self._abandon(run_id)
        return [run.handle() for run in runs.values() if run.launched]

    def subscribe(self, changed: Callable[[], None]) -> Callable[[], None]:
        return self._subscribers.add(changed)

    def place(self, order: RunOrder) -> Handle:
        run = self._run(order.run_id)
        if order.run_id in self._abandoned:
            message = "An earlier attempt to start it is not removed yet."
            raise StartFailed(order.replicas[0].task, message, Reason.HOST_FAILED)
        if run is not None:
            return run.handle()
        try:
            root = self._client.create("configmaps", objects.root(self._owner, order))
            run = _Run.of(root)
            self._client.create("services", objects.service(self._owner, order, run.uid))
        except KubeError as error:
            self._abandon(order.run_id)
            raise StartFailed(order.replicas[0].task, error.message, _reason_of(error)) from error
        with self._lock:
            self._runs[order.run_id] = run
        return run.handle()

    def start(self, run_id: str, launches: Sequence[Launch]) -> Handle:
        run = self._run(run_id)
        if run is None:
            raise StartFailed(launches[0].task, "Its run was not placed.")
        if run.launched:
            return run.handle()
        for launch in launches:
            if launch.keep is not None and run.order.training_input.runs_image and not launch.entrypoint:
                self._abandon(run_id)
                raise StartFailed(launch.task, _NO_ENTRY_POINT)
        try:
            if launches[0].secret_values:
                self._client.create("secrets", objects.secret(self._owner, run.order, run.uid, launches[0]))
            pods = [
                objects.pod(self._owner, run.order, launch, run.uid, *further, self._wait_for_peers(run, launch))
                for launch, further in zip(launches, self._installations(run, launches), strict=True)
            ]
            self._annotate(run, {LAUNCHED: "true"})
            self._make(run, [self._admission.member(run.order, pod) for pod in pods])
        except KubeError as error:
            self._abandon(run_id)
            raise StartFailed(launches[0].task, error.message, _reason_of(error)) from error
        except NotAdmitted as error:
            self._abandon(run_id)
            raise StartFailed(launches[0].task, str(error), error.reason) from error
        return run.handle()

    def _make(self, run: _Run, pods: Sequence[KubeObject]) -> None:
        """Make the pods of a launched run. What cannot be made has ended. Raises NotAdmitted."""
        try:
            for pod in self._pool.map(lambda body: self._client.create("pods", body), pods):
                self._watch.put(pod)
                self._admission.check(pod)
            self._annotate(run, {MADE: "true"})
        except KubeError as error:
            run.unmade = _reason_of(error), error.message
            _log.warning("not all pods of run %s are made: %s", run.order.run_id, error.message)

    def observe(self, run_id: str) -> tuple[ReplicaReport, ...]:
        run = self._run(run_id)
        if run is None:
            return ()
        addresses = objects.addresses(run.order)
        if not run.launched:
            return tuple(
                ReplicaReport(task=task, state=ReplicaState.PENDING, address=addresses[task]) for task in run.tasks
            )
        states = {task: self._state(run, task) for task in run.tasks if task not in run.exits}
        self._record_ends(run, addresses, states)
        for task in run.tasks:
            self._follow(run, task)
        return tuple(
            run.exits.get(task)
            or ReplicaReport(
                task=task,
                state=_state_until_reported(states[task]),
                address=addresses[task],
                started_at=states[task].started_at,
                waits=states[task].waits,
            )
            for task in run.tasks
        )

    def has_ended(self, run_id: str) -> bool:
        return all(report.exit is not None for report in self.observe(run_id))

    def read_log(self, run_id: str, task: str, start: int, max_lines: int, max_bytes: int) -> LogSlice:
        run = self._run(run_id)
        if run is None or task not in run.tasks:
            return GONE
        if not run.launched:
            return LogSlice((), complete=False)
        self._follow(run, task)
        return self._logs.read((run_id, task), start, max_lines, max_bytes)

    def resume_log(self, run_id: str, task: str, position: LogPosition) -> None:
        run = self._run(run_id)
        if run is not None and run.launched and task in run.tasks:
            self._follow(run, task)
            self._logs.resume((run_id, task), position)

    def read_metrics(self, run_id: str, task: str) -> bytes:  # noqa: ARG002 - see the traits
        return b""

    def processes(self, run_id: str, task: str) -> tuple[int, ...]:  # noqa: ARG002 - they are on other machines
        return ()

    def usage(self, run_id: str, task: str) -> ReplicaUse | None:
        run = self._run(run_id)
        if not self.traits.measures_usage or run is None or task not in run.tasks or task in run.exits:
            return None
        return self._metrics.use(pod_name(run_id, task))

    def execute(self, run_id: str, task: str, command: Sequence[str], terminal: Terminal | None) -> Attachment:
        run = self._running(run_id, task)
        words = objects.in_environment(command) if run.order.training_input.package_uris else tuple(command)
        return exec_in_pod(self._client, pod_name(run_id, task), words, terminal)

    def connect(self, run_id: str, task: str, port: int) -> Attachment:
        self._running(run_id, task)
        return port_of_pod(self._client, pod_name(run_id, task), port)

    def _running(self, run_id: str, task: str) -> _Run:
        """Raises NotAttachable."""
        run = self._run(run_id)
        if run is None or task not in run.tasks or task in run.exits:
            raise NotAttachable(f"{task} does not run.")
        return run

    def stop(self, run_id: str, grace_s: float, reason: Reason = STOPPED) -> None:
        run = self._run(run_id)
        if run is None or not run.launched:
            return
        alive = [task for task in run.tasks if task not in run.exits and self._state(run, task, now=True).exit is None]
        if not alive:
            return
        if STOP not in run.annotations:
            of_engine = [task for task in alive if is_taken_away(self._pod(run, task) or {})]
            ours = [task for task in alive if task not in of_engine]
            self._annotate(run, {STOP: json.dumps({"reason": reason, "tasks": ours})})
        names = [pod_name(run_id, task) for task in alive]
        grace = objects.whole_seconds(grace_s)
        list(self._pool.map(lambda name: self._client.delete("pods", name, grace), names))

    def remove(self, run_id: str) -> None:
        run = self._run(run_id)
        pods = self._removal.remove(run_id)
        if run is None and not pods:
            return
        name = run_name(run_id)
        if run is not None and run.order.training_input.secrets:
            self._client.delete("secrets", name)
        if run is not None and run.order.training_input.package_uris:
            self._client.delete("configmaps", installation.config_name(run_id))
        self._client.delete("services", name)
        self._client.delete("configmaps", name)
        with self._lock:
            self._runs.pop(run_id, None)
        self._logs.remove(run_id)

    def _installations(self, run: _Run, launches: Sequence[Launch]) -> list[list[PodParts]]:
        """The parts of each pod that install the run's packages, from a ConfigMap that is made here."""
        directory = launches[0].packages
        if not directory:
            return [[] for _ in launches]
        stored, contents = Installation.read(Path(directory))
        self._client.create("configmaps", installation.config(self._owner, run.order, run.uid, contents))
        return [[installation.parts(run.order, launch, stored)] for launch in launches]

    def _wait_for_peers(self, run: _Run, launch: Launch) -> PodParts:
        """The image of a package job has python3."""
        return peers.parts(run.order, launch, launch.image if launch.packages else self._init_image)

    # What is known of a run.

    def _run(self, run_id: str) -> _Run | None:
        with self._lock:
            if run_id in self._runs:
                return self._runs[run_id]
        root = self._client.get("configmaps", run_name(run_id))
        labels = root["metadata"].get("labels") or {} if root is not None else {}
        if root is None or labels.get(objects.AGENT) != self._owner.agent_id or labels.get(objects.RUN) != run_id:
            return None
        run = _Run.of(root)
        with self._lock:
            return self._runs.setdefault(run_id, run)

    def _annotate(self, run: _Run, values: Mapping[str, str]) -> None:
        self._write_down(run, {"metadata": {"annotations": dict(values)}})
        run.annotations |= values

    def _write_down(self, run: _Run, part: KubeObject) -> None:
        """Merge it into the root. A root that was deleted by hand takes its pods with it: their ends are still told."""
        if self._client.patch("configmaps", run_name(run.order.run_id), part) is None:
            _log.warning("the ConfigMap of run %s was deleted, and not by this agent", run.order.run_id)

    def _pod(self, run: _Run, task: str, now: bool = False) -> KubeObject | None:
        """The pod as last seen; asked for if it is not seen at all, or `now`."""
        name = pod_name(run.order.run_id, task)
        pod = None if now else self._watch.get(name)
        if pod is None and (pod := self._client.get("pods", name)) is not None:
            self._watch.put(pod)
        return pod

    def _state(self, run: _Run, task: str, now: bool = False) -> PodState:
        pod = self._pod(run, task, now)
        if pod is None:
            why = Reason.VANISHED, "Its pod was removed, and not by Trainyard."
            if MADE not in run.annotations:
                why = run.unmade
            return PodState(ReplicaState.EXITED, exit=never_ran(*why, datetime.now(UTC)))
        memory = next(replica.memory_bytes for replica in run.order.replicas if replica.task == task)
        state = state_of(pod, memory)
        waits = "" if state.exit else self._admission.waits(run.order.run_id, pod)
        if waits and (refusal := self._admission.refusal(run.order.run_id)):
            return PodState(ReplicaState.EXITED, exit=never_ran(Reason.REFUSED, refusal, datetime.now(UTC)))
        return PodState(ReplicaState.PENDING, waits=waits) if waits else state

    def _record_ends(self, run: _Run, addresses: Mapping[str, str], states: Mapping[str, PodState]) -> None:
        """Number new ends in their order, and write them down before they are told."""
        reason, stopped = run.stopped
        fresh = {}
        due = run.ends.due(states, time.monotonic(), lambda task, several: self._rank(run, task, several))
        for number, task in enumerate(due, len(run.exits) + 1):
            state = states[task]
            end, started = state.exit, state.started_at
            assert end is not None
            if task in stopped:
                end = stopped_exit(end.code, reason, end.finished_at)
            if started is not None and end.finished_at < started:
                end = end.model_copy(update={"finished_at": started})
            if number > _WHOLE:
                end = end.model_copy(update={"message": end.message[:_MESSAGE]})
            fresh[task] = ReplicaReport(
                task=task,
                state=ReplicaState.EXITED,
                address=addresses[task],
                started_at=started,
                exit=end.model_copy(update={"order": number}),
            )
        if fresh:
            exits = {f"{EXIT}{task}": report.model_dump_json() for task, report in fresh.items()}
            self._write_down(run, {"data": exits})
            run.exits |= fresh
            for task, report in fresh.items():  # their kubelets may still try to start them
                if report.exit is not None and report.exit.reason in _UNSTARTED:
                    self._client.delete("pods", pod_name(run.order.run_id, task), 1)

    def _rank(self, run: _Run, task: str, several: bool) -> tuple[str, int]:
        """The order of an end among those of its second: its last line, then when the API server learned of it."""
        name = pod_name(run.order.run_id, task)
        pod = self._watch.get(name)
        stamp = ""
        if several and pod is not None and has_begun(pod):
            try:
                stamp = line_time(self._client.last_log_line(name, objects.CONTAINER))
            except KubeError as error:
                _log.warning("the last line of pod %s is not known: %s", name, error)
        version = int(pod["metadata"]["resourceVersion"]) if pod else 0
        return stamp, version

    # Logs.

    def _follow(self, run: _Run, task: str) -> None:
        source = LogSource(
            pod_name(run.order.run_id, task),
            lambda: self._phase(run, task),
            lambda: self._secret_values(run),
            run.order.log_quota_bytes,
            lambda: start_time(self._pod(run, task) or {}),
        )
        self._logs.follow((run.order.run_id, task), source)

    def _phase(self, run: _Run, task: str) -> tuple[bool, bool]:
        """Whether the replica's container has begun, and whether it has ended. One whose pod is gone may have, even if
        no agent saw it: its log cannot be read any more, and says so."""
        pod, end = self._pod(run, task), run.exits.get(task)
        if pod is None:
            is_lost = end is not None and end.exit is not None and end.exit.reason is Reason.VANISHED
            return is_lost, end is not None
        return has_begun(pod), end is not None or state_of(pod).exit is not None

    def _secret_values(self, run: _Run) -> list[str]:
        """The values that the log is masked with. Without them it is not read."""
        if not run.order.training_input.secrets:
            return []
        secret = self._client.get("secrets", run_name(run.order.run_id))
        return [base64.b64decode(value).decode() for value in objects.secret_values(secret or {})]

    # Removal.

    def _abandon(self, run_id: str) -> None:
        """Remove a run that could not be started: what cannot be removed now, later."""
        removed = self._try_to_remove(run_id)
        with self._lock:
            self._runs.pop(run_id, None)
        if not removed:
            self._abandoned.add(run_id)
            threading.Thread(target=self._keep_removing, args=(run_id,), daemon=True).start()

    def _keep_removing(self, run_id: str) -> None:
        while not self._closing.wait(_RETRY_S):
            if self._try_to_remove(run_id):
                self._abandoned.discard(run_id)
                return

    def _try_to_remove(self, run_id: str) -> bool:
        try:
            self.remove(run_id)
        except (KubeError, NotRemoved) as error:
            _log.warning("run %s was not started, and is not removed now: %s", run_id, error)
            return False
        return True


def _reason_of(error: KubeError) -> Reason:
    """The end of a replica whose objects could not be made. All but a refusal for good passes: a quota that is used
    up, an API server that is away or restarted."""
    return Reason.REFUSED if error.is_final else Reason.GIVEN_BACK


def _state_until_reported(state: PodState) -> ReplicaState:
    """The state of a replica whose end is not reported yet."""
    if state.exit is None:
        return state.state
    return ReplicaState.RUNNING if state.started_at else ReplicaState.STARTING
