"""Plays a plan: a service of real processes, people who use it, and everything that happens to them."""

import json
import os
import random
import shutil
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import httpx
from sqlalchemy import Connection, create_engine, select

from beds.mounts import SmallDisk, small_disk
from beds.token_files import long_token, write_token
from chaos.plan import AGENT_KINDS, START_DEADLINE_S, Operation, Plan, PlannedJob
from chaos.service import program
from chaos.service.cluster import CALM_CLUSTER, ChaosCluster, ClusterWeather, Trap
from chaos.service.people import Answer, GaveUp, Log, Person
from chaos.service.proxy import CALM, Network, Weather
from chaos.service.replicas import Key, Replicas, truths
from chaos.service.services import AGENT_KNOBS, CLUSTER_KNOBS, LEASE_S, RETRIES, SERVER_KNOBS, SILENT_S, Forge, Service
from support.addresses import free_ports
from trainyard_agent.host.files import holder
from trainyard_agent.lease.watchdog_files import LOCK
from trainyard_protocol.answers.jobs import JobDetail
from trainyard_protocol.states import FINAL_JOB_STATES, JobState
from trainyard_server.storage.db.base.models import RunRow

TOKENS = {role: long_token(role) for role in ("admin", "agent")}
_PATIENCE_S = {"process": 90.0, "docker": 120.0, "kubernetes": 90.0}
_TRAP_S = 4.0
_DISK_MB = 64
_FIRST_PORT, _PORTS = 30_000, 100
_PATIENCE_FOR_A_JOB_S = 20.0


class NeverSettled(AssertionError):
    """Everything is healed, and yet not everything has ended."""


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a history. `database` is the URL of an empty one ("": SQLite), `python` the interpreter whose
    packages jobs see, `image` what containers are made of, `environment` the agents' own, `replica_environment` what
    they give to what they start, `cluster` where pods are made. `address` is one of this machine that is not loopback,
    which gangs over agents need; `worker` numbers the histories that run at the same time."""

    forge: Forge
    database: str
    python: str = ""
    image: str = ""
    environment: dict[str, str] = field(default_factory=dict)
    replica_environment: dict[str, str] = field(default_factory=dict)
    cluster: ChaosCluster | None = None
    address: str = ""
    worker: int = 0


@dataclass(slots=True)
class JobAnswers:
    """The answers that people got about one job."""

    submitted: Answer | None = None
    cancels: list[Answer] = field(default_factory=list)
    followed: Log = field(default_factory=Log)


@dataclass(slots=True)
class Outcome:
    """All that a history left to be checked."""

    plan: Plan
    root: Path
    answers: dict[str, JobAnswers]
    details: dict[str, JobDetail]
    logs: dict[str, Log]
    jobs: list[str]
    harmed: dict[Key, set[str]]
    held: dict[Key, float]
    """When supervisors were killed whose output an agent had open."""
    agent_ends: list[float]
    containers: list[str]
    """And networks, of these agents; or objects in a cluster."""
    parts: dict[str, str]
    """The runs of parts on further agents, by the first ten characters of their ids."""
    faults: dict[str, int]
    began: datetime
    seconds: float

    @property
    def effects(self) -> dict[str, int]:
        """Counts of what the planned operations met: what was done to replicas, and how runs ended of it."""
        done = Counter(how for harms in self.harmed.values() for how in harms)
        runs = [run for detail in self.details.values() for gang in detail.runs for run in (gang, *gang.restarts)]
        ends = Counter(run.verdict.reason.value for run in runs if run.verdict is not None)
        reasons = ("HOST_LOST", "HOST_FAILED", "GIVEN_BACK", "UNREACHED", "RESTORED")
        lost = {reason: ends[reason] for reason in reasons if ends[reason]}
        disks = {"disks filled": count} if (count := self.faults["disks filled"]) else {}
        spread = {"gangs over agents": len(self.parts)} if self.parts else {}
        return {**done, **lost, **disks, **spread}


def parts_in(database: str) -> dict[str, str]:
    """The run of each part on a further agent, by the first ten characters of their ids."""
    engine = create_engine(database)
    with engine.connect() as connection:
        rows = connection.execute(select(RunRow.run_id, RunRow.part_of).where(RunRow.part_of.is_not(None))).all()
    engine.dispose()
    return {run_id[:10]: part_of[:10] for run_id, part_of in rows if part_of is not None}


def writers(connection: Connection, after_s: float = 0.0) -> set[int]:
    """The sessions of PostgreSQL that hold the lock of writers, which only one that stands still does for long."""
    time.sleep(after_s)
    query = (
        "SELECT l.pid FROM pg_locks l JOIN pg_database d ON d.oid = l.database "
        "WHERE d.datname = current_database() AND l.locktype = 'advisory' AND l.granted"
    )
    return set(connection.exec_driver_sql(query).scalars())


def answers(port: int) -> bool:
    """Whether the server there does: one that starts and loses its database ends."""
    try:
        return httpx.get(f"http://127.0.0.1:{port}/healthz").is_success
    except httpx.HTTPError:
        return False


class History:
    retries = RETRIES

    def __init__(self, plan: Plan, place: Place, root: Path) -> None:
        self.plan = plan
        self.patience_s = _PATIENCE_S[plan.runtime] + _PATIENCE_FOR_A_JOB_S * len(plan.jobs)
        self.root = root
        self._ended = threading.Event()
        self._mounts = ExitStack()
        self._filled = 0
        self._agent_ends: list[float] = []
        self._started, self._began = 0.0, datetime.now(UTC)
        self._threads: list[threading.Thread] = []
        self._errors: list[str] = []
        self._spreads = plan.spreads and bool(place.address)
        self._database = place.database or f"sqlite:///{root}/data/trainyard.db"
        self._image, self._cluster = place.image, place.cluster
        if place.cluster is not None:
            place.cluster.zone = timezone(timedelta(minutes=plan.zone_min))
        self.answers = {job.name: JobAnswers() for job in plan.jobs}
        self._is_submitted = {job.name: threading.Event() for job in plan.jobs}
        self._network = Network()
        self._disks = self._mounted()
        self.servers = [self._server(place, number) for number in range(plan.servers)]
        targets = [port for _, port in self.servers]
        self.agents = [self._agent(place, number, targets) for number in range(plan.agents)]
        people = self._network.add("people", targets, plan.seed)
        self.person = Person(people.port, TOKENS["admin"], self._ended)
        self._replicas = Replicas(
            root,
            plan.runtime,
            place.environment,
            self.agent_ids,
            lambda: [agent.pid for agent in self.agents],
            place.cluster,
        )

    def play(self) -> Outcome:
        """Raises NeverSettled, and AssertionError for a service that did not do what it was told."""
        self._started = time.monotonic()
        try:
            for service, _ in self.servers:
                service.start()
            late = {o.values["agent"] for o in self.plan.operations if o.kind == "join_agent"}
            for number, service in enumerate(self.agents):
                if number not in late:
                    service.start()
            operations = [(job.at, self.submit, (job,)) for job in self.plan.jobs]
            operations += [(o.at, self._operate, (o,)) for o in self.plan.operations]  # type: ignore[misc]
            for at, work, values in operations:
                self._spawn(at, work, *values)
            self._join()
            self._heal()
            details = self._settle()
            logs = {name: self.person.log(name) for name in details}
            outcome = self._outcome(details, logs)
            for name, detail in details.items():
                (self.root / f"{name}.json").write_text(detail.model_dump_json(indent=1))
            for service in [*self.agents, *(server for server, _ in self.servers)]:
                status = service.stop(signal.SIGTERM)
                assert status == 0, f"{service.name} was told to end and ended with {status}: see {service.log}"
            outcome.seconds = time.monotonic() - self._started
            return outcome
        finally:
            self._close()

    def agent_ids(self) -> list[str]:
        files = [self.root / f"agent-{n}" / "agent.json" for n in range(self.plan.agents)]
        return [json.loads(file.read_text())["agent_id"] for file in files if file.exists()]

    def parts(self) -> dict[str, str]:
        """The run of each part on a further agent, by the first ten characters of their ids."""
        if not self._spreads or not any(truths(self.root)):
            return {}
        return parts_in(self._database)

    # The parts.

    def _mounted(self) -> dict[int, SmallDisk]:
        """Small file systems in place of the state directories of the agents whose disks will be full."""
        numbers = {one.values["agent"] for one in self.plan.operations if one.kind == "fill_disk"}
        return {
            number: self._mounts.enter_context(small_disk(self.root / f"agent-{number}", _DISK_MB))
            for number in sorted(numbers)
        }

    def _server(self, place: Place, number: int) -> tuple[Service, int]:
        (port,) = free_ports(1)
        for role, token in TOKENS.items():
            write_token(self.root / role, token)
        arguments = self._server_arguments(self.root / "data", port)
        if place.database:
            arguments += ["--database", place.database]
        runtime = self.plan.runtime
        knobs = {**SERVER_KNOBS, "silent_after_s": SILENT_S[runtime], "lease_s": LEASE_S[runtime]}
        return Service(place.forge, "server", f"server-{number}", arguments, self.root, knobs), port

    def _server_arguments(self, data: Path, port: int) -> list[str]:
        arguments = ["--data-dir", str(data), "--port", str(port), "--retries", str(self.retries)]
        for role in TOKENS:
            arguments += ["--token-file", f"{role}={self.root / role}"]
        if self._spreads:
            arguments += ["--shared-job-dirs", str(self.root / "jobs"), "--long-leases"]  # of LEASE_S
        return arguments

    def _agent(self, place: Place, number: int, targets: list[int]) -> Service:
        name = f"agent-{number}"
        proxy = self._network.add(name, targets, self.plan.seed)
        arguments = ["--server", f"http://127.0.0.1:{proxy.port}", "--token-file", str(self.root / "agent")]
        arguments += ["--state-dir", str(self.root / name), "--name", name]
        if place.cluster is not None:
            arguments += ["--runtime", "kubernetes", "--kubeconfig", str(place.cluster.kubeconfig)]
            arguments += ["--pool", "2x4x16", "--init-image", place.image]
            arguments += ["--start-deadline", str(START_DEADLINE_S)]
            knobs = {**AGENT_KNOBS, **CLUSTER_KNOBS}
            return Service(place.forge, "agent", name, arguments, self.root, knobs, may_end=True)
        arguments += [
            "--runtime",
            "process" if self.plan.runtime == "process" else "auto",
            "--memory-gb",
            "16",
            "--one-user",
        ]
        arguments += ["--job-dir-root", str(self.root / "jobs")]
        if place.python:
            arguments += ["--python", place.python]
        for variable, value in place.replica_environment.items():
            arguments += ["--replica-env", f"{variable}={value}"]
        if self.plan.agents > 1:
            arguments += ["--cpus", str(number % 2)]
        if self._spreads:
            first = _FIRST_PORT + 3 * _PORTS * place.worker + _PORTS * number
            arguments += ["--address", place.address, "--ports", f"{first}-{first + _PORTS - 1}"]
        is_frozen = any(o.kind == "freeze_agent" and o.values["agent"] == number for o in self.plan.operations)
        # One that is started on a full disk says so, and ends; a frozen one is killed by its watchdog.
        may_end = number in self._disks or is_frozen
        return Service(
            place.forge, "agent", name, arguments, self.root, AGENT_KNOBS, place.environment, may_end=may_end
        )

    def training_input(self, job: PlannedJob) -> dict[str, Any]:
        directory = self.root / "jobs" / job.name
        directory.mkdir(parents=True)
        gang: dict[str, Any] = {"scaleTier": "CUSTOM", "masterType": "local-1", "jobDir": str(directory)}
        script = json.dumps(job.script)
        configs = list(job.script)
        if job.workers:
            gang |= {"workerType": "local-1", "workerCount": str(job.workers)}
        if "evaluator" in job.script:
            gang |= {"evaluatorType": "local-1", "evaluatorCount": "1"}
        if not self.plan.in_container(job):
            return {**gang, "pythonModule": "chaos_program", "args": [script]}
        shutil.copy(program.__file__, directory / "program.py")
        command = ["python3", "-S", "-E", str(directory / "program.py"), script]
        if self._cluster is not None:  # a pod has no directory of the machine as job-dir
            command += ["--job-dir", gang.pop("jobDir")]
        config = {"imageUri": self._image, "containerCommand": command}
        return {**gang, **{f"{task}Config": config for task in configs}}

    # What happens.

    def _spawn(self, at: float, work: Callable[..., None], *values: Any) -> None:
        def run() -> None:
            if not self._ended.wait(max(0.0, self._started + at - time.monotonic())):
                try:
                    work(*values)
                except (AssertionError, GaveUp) as error:
                    self._errors.append(str(error))

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        self._threads.append(thread)

    def _join(self) -> None:
        """All that was planned has happened. Who asks is heard at the latest when everything is healed."""
        for thread in self._threads[len(self.plan.jobs) :]:
            thread.join(10 * self.patience_s)

    def submit(self, job: PlannedJob) -> None:
        answers = self.answers[job.name]
        answers.submitted = answer = self.person.submit(job.name, self.training_input(job))
        assert answer.status in (200, 409), f"{job.name} was refused: {answer}"
        self._is_submitted[job.name].set()
        self.person.follow(job.name, answers.followed, random.Random(f"{job.name} {self.plan.seed}"))

    def _operate(self, operation: Operation) -> None:
        name = f"do_{operation.kind}"
        actor = next(actor for actor in (self, self._replicas, self._cluster) if hasattr(actor, name))
        getattr(actor, name)(**operation.values)

    def do_cancel(self, job: int, times: int, when: str = "submitted", after_s: float = 0.0) -> None:
        """Seconds after the job has reached a stage of its life (`plan.STAGES`)."""
        name = self.plan.jobs[job].name

        def ask() -> None:
            self._is_submitted[name].wait(60)
            while not self._has_reached(name, when) and not self._ended.wait(0.03):
                pass
            time.sleep(after_s)
            for _ in range(times):
                self.answers[name].cancels.append(self.person.cancel(name))

        self._spawn(0.0, ask)  # nobody waits for it: the service may be away

    def _has_reached(self, name: str, stage: str) -> bool:
        """A job that is over has been through all of them."""
        if stage == "submitted":
            return True
        noted = [truth for truth in truths(self.root) if truth.job == name]
        if stage in ("born", "speaking", "ended"):
            reached = {
                "born": bool(noted),
                "speaking": any(any(truth.written.values()) for truth in noted),
                "ended": any(truth.code is not None for truth in noted if truth.task == "master-replica-0"),
            }
            if reached[stage]:
                return True
        state = self.person.detail(name).state
        return state in FINAL_JOB_STATES or (stage == "prepared" and state is not JobState.QUEUED)

    def do_kill_server(self, server: int, down_s: float) -> None:
        self.servers[server][0].down(signal.SIGKILL, down_s)

    def do_end_server(self, server: int, down_s: float) -> None:
        self.servers[server][0].down(signal.SIGTERM, down_s)

    def do_pause_server(self, server: int, down_s: float) -> None:
        self.servers[server][0].pause(down_s)

    def do_freeze_server(self, server: int, for_s: float) -> None:
        """It stands still in the middle of a write, if it writes soon, for longer than its lease: meanwhile the other
        one schedules. The database ends the write before it goes on."""
        (service, port), engine = self.servers[server], create_engine(self._database)
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:

            def is_writing() -> bool:
                return bool(writers(connection) & writers(connection, after_s=0.03))

            service.pause(for_s, lambda: answers(port), is_writing)
        engine.dispose()

    def do_kill_agent(self, agent: int, down_s: float) -> None:
        self._end_agent(agent, signal.SIGKILL, down_s)

    def do_end_agent(self, agent: int, down_s: float) -> None:
        self._end_agent(agent, signal.SIGTERM, down_s)

    def _end_agent(self, agent: int, how: signal.Signals, down_s: float) -> None:
        self.agents[agent].down(how, down_s, lambda: self._agent_ends.append(time.monotonic()))

    def do_join_agent(self, agent: int) -> None:
        self.agents[agent].start()

    def do_leave_agent(self, agent: int, for_s: float) -> None:
        """It ends, and its machine is away for so long, with what it still runs: a part of a gang stays behind."""
        self._end_agent(agent, signal.SIGTERM, for_s)

    def do_pause_agent(self, agent: int, down_s: float) -> None:
        self.agents[agent].pause(down_s)

    def do_freeze_agent(self, agent: int) -> None:
        """It wakes, or is started again, when others have its runs. An agent that is alone has no lease: it is only
        paused."""
        self.agents[agent].pause(LEASE_S[self.plan.runtime] * (1.3 if self.plan.agents > 1 else 0.1))
        self._agent_ends.append(time.monotonic())  # its watchdog may have killed it

    def do_fill_disk(self, agent: int, for_s: float) -> None:
        """Not a byte fits onto the disk of its state directory for a while."""
        self._disks[agent].fill()
        self._filled += 1
        time.sleep(for_s)
        self._disks[agent].free()

    def do_kill_watchdog(self, agent: int) -> None:
        watchdog = holder(self.root / f"agent-{agent}" / LOCK)
        if watchdog is not None:
            signal.pidfd_send_signal(watchdog, signal.SIGKILL)
            os.close(watchdog)

    def do_kill_supervisor(self, which: int) -> None:
        is_calm = not any(operation.kind in AGENT_KINDS for operation in self.plan.operations)
        self._replicas.kill_supervisor(which, must_be_held=is_calm)

    def do_trap_agent(self, agent: int, down_s: float, call: int, done: bool) -> None:
        """Its next request but so many is its last, and is done or not."""
        assert self._cluster is not None
        trap = Trap(call, done)
        self._cluster.set_trap(trap)
        if trap.sprung.wait(_TRAP_S):
            self.agents[agent].down(signal.SIGKILL, down_s, trap.released.set)
        else:
            self._cluster.remove_trap(trap)

    def do_disturb_cluster(self, for_s: float, **faults: float) -> None:
        self._change_cluster(ClusterWeather(down=False, **faults), for_s)

    def do_cut_cluster(self, for_s: float) -> None:
        self._change_cluster(ClusterWeather(down=True), for_s)

    def _change_cluster(self, weather: ClusterWeather, for_s: float) -> None:
        assert self._cluster is not None
        self._cluster.change(weather)
        time.sleep(for_s)
        self._cluster.change(CALM_CLUSTER)

    def do_disturb(self, side: str, for_s: float, **faults: Any) -> None:
        self._change(side, Weather(**faults), for_s)

    def do_cut(self, side: str, how: str, for_s: float) -> None:
        self._change(side, Weather(link=how), for_s)

    def do_lose_agent(self, job: int, how: str) -> None:
        """The agent of a job whose programs talk lives, and reaches nobody for longer than its lease."""
        name = self.plan.jobs[job].name
        self._is_submitted[name].wait(self.patience_s)
        give_up_at = time.monotonic() + self.patience_s
        while not (agent := self._speaks_on(name)) and not self._ended.wait(0.1):
            assert time.monotonic() < give_up_at, f"{name} never said a word"
        self._change(agent, Weather(link=how), 1.4 * LEASE_S[self.plan.runtime])

    def _speaks_on(self, job: str) -> str:
        """The agent with the primary of the last run of a job, once that run has said something."""
        runs = self.person.detail(job).runs
        noted = truths(self.root, self.parts())
        spoken = {truth.run for truth in noted if truth.job == job and any(truth.written.values())}
        return runs[-1].agent.partition(",")[0] if runs and runs[-1].run_id[:10] in spoken else ""

    def do_jump(self, who: str, seconds: float, for_s: float) -> None:
        kind, _, number = who.partition("-")
        service = self.servers[int(number)][0] if kind == "server" else self.agents[int(number)]
        service.shift(seconds)
        time.sleep(for_s)
        service.shift(0)

    def _change(self, side: str, weather: Weather, for_s: float) -> None:
        self._network.change(side, weather)
        time.sleep(for_s)
        self._network.change(side, CALM)

    # The end.

    def _heal(self) -> None:
        for side in self._network.proxies:
            self._network.change(side, CALM)
        if self._cluster is not None:
            self._cluster.change(CALM_CLUSTER)
        self._await_lost_logs()
        for job in self.plan.jobs:
            if job.endless:
                self.do_cancel(self.plan.jobs.index(job), 1)

    def _check_errors(self) -> None:
        if self._errors:
            raise AssertionError("; ".join(self._errors))

    def _await_lost_logs(self) -> None:
        """Agents that were lost are back, and send what their runs wrote while the jobs go on. Raises NeverSettled."""
        give_up_at = time.monotonic() + self.patience_s
        while undelivered := self._undelivered():
            self._check_errors()
            if time.monotonic() > give_up_at:
                raise NeverSettled(f"agents that are back did not send the logs of {undelivered}")
            for agent in self.agents if self._disks else ():
                agent.keep_up()
            time.sleep(0.1)

    def _undelivered(self) -> list[str]:
        """The logs of lost hosts that are not complete yet, of programs that have lived and of jobs that go on."""
        lived = {truth.key for truth in truths(self.root, self.parts())}
        found = []
        for job in self.plan.jobs:
            if not job.endless or not self._is_submitted[job.name].is_set():
                continue
            detail = self.person.detail(job.name)
            ids = {run.number: run.run_id for gang in detail.runs for run in (gang, *gang.restarts)}
            last = {
                (event.run, event.task): event.message
                for event in detail.events
                if event.kind in ("log-damaged", "log-complete")
            }
            for (number, task), message in last.items():
                is_open = detail.state not in FINAL_JOB_STATES and message.endswith("its host was lost.")
                if is_open and number is not None and (ids[number][:10], task) in lived:
                    found.append(f"{job.name}, run {number}, {task}")
        return found

    def _settle(self) -> dict[str, JobDetail]:
        """Wait until every job has ended, everybody has heard of it, and the machines are clear."""
        give_up_at = time.monotonic() + self.patience_s
        details: dict[str, JobDetail] = {}
        while time.monotonic() < give_up_at:
            if self._cluster is not None or self._disks:
                for agent in self.agents:
                    agent.keep_up()
            self._check_errors()
            if all(event.is_set() for event in self._is_submitted.values()):
                open_ = [n for n in self.answers if n not in details or details[n].state not in FINAL_JOB_STATES]
                details |= {name: self.person.detail(name) for name in open_}
                ended = all(detail.state in FINAL_JOB_STATES for detail in details.values())
                if ended and not self._left() and all(not t.is_alive() for t in self._threads):
                    return {name: self.person.detail(name) for name in self.answers}
            time.sleep(0.1)
        states = {name: (detail.state.value, detail.waiting) for name, detail in details.items()}
        followed = {name: answers.followed.summary is not None for name, answers in self.answers.items()}
        raise NeverSettled(
            f"after {self.patience_s} s: {states}, followed to the end: {followed}, left: {self._left()}"
        )

    def _left(self) -> list[str]:
        """Directories that the agents have not removed yet."""
        places = [
            self.root / f"agent-{number}" / name
            for number in range(self.plan.agents)
            for name in ("runs", "environments", "containers", "staging", "pods")
        ]
        files = [str(path) for place in places if place.is_dir() for path in place.iterdir()]
        return files + (self._replicas.containers() if self._cluster is not None else [])

    def _outcome(self, details: dict[str, JobDetail], logs: dict[str, Log]) -> Outcome:
        counts: dict[str, int] = {}
        for proxy in self._network.proxies.values():
            for what, count in proxy.counts.items():
                counts[what] = counts.get(what, 0) + count
        counts |= self._cluster.counts if self._cluster is not None else {}
        counts["disks filled"] = self._filled
        parts = self.parts()
        return Outcome(
            plan=self.plan,
            root=self.root,
            answers=self.answers,
            details=details,
            logs=logs,
            jobs=self.person.jobs(),
            harmed={(parts.get(run, run), task): how for (run, task), how in self._replicas.harmed.items()},
            held={(parts.get(run, run), task): at for (run, task), at in self._replicas.held.items()},
            parts=parts,
            agent_ends=self._agent_ends,
            containers=self._replicas.containers(),
            faults=counts,
            began=self._began,
            seconds=0.0,
        )

    def _close(self) -> None:
        self._ended.set()
        for service in [*self.agents, *(server for server, _ in self.servers)]:
            service.kill()
        self._network.close()
        self._replicas.remove()
        self._mounts.close()
