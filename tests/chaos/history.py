"""Plays a plan: a service of real processes, people who use it, and everything that happens to them."""

import json
import shutil
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from chaos import program
from chaos.people import Answer, GaveUp, Log, Person
from chaos.plan import Operation, Plan, PlannedJob
from chaos.proxy import CALM, Network, Weather
from chaos.replicas import Key, Replicas
from chaos.services import AGENT_KNOBS, LEASE_S, RETRIES, SERVER_KNOBS, SILENT_S, Forge, Service, free_port
from trainyard_protocol.states import FINAL_JOB_STATES
from trainyard_protocol.views import JobDetail

TOKENS = {"admin": "admin-secret", "agent": "agent-secret"}
_PATIENCE_S = {"process": 45.0, "docker": 90.0}


class NeverSettled(AssertionError):
    """Everything is healed, and yet not everything has ended."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where histories are played. `database`: makes a fresh one, and answers with its URL ("": SQLite);
    `python` is the interpreter whose packages jobs see; `image` what containers are made of."""

    forge: Forge
    database: Callable[[], str]
    python: str = ""
    image: str = ""
    environment: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class Told:
    """What people were told of one job."""

    submitted: Answer | None = None
    cancels: list[Answer] = field(default_factory=list)
    followed: Log = field(default_factory=Log)


@dataclass(slots=True)
class Outcome:
    """All that a history left to be checked."""

    plan: Plan
    root: Path
    told: dict[str, Told]
    details: dict[str, JobDetail]
    logs: dict[str, Log]
    jobs: list[str]
    harmed: dict[Key, set[str]]
    agent_ids: list[str]
    trouble: list[str]
    faults: dict[str, int]
    seconds: float


class History:
    def __init__(self, plan: Plan, place: Place, root: Path) -> None:
        self._plan = plan
        self._root = root
        self._over = threading.Event()
        self._started = 0.0
        self._threads: list[threading.Thread] = []
        self._trouble: list[str] = []
        self._image = place.image
        self._told = {job.name: Told() for job in plan.jobs}
        self._is_submitted = {job.name: threading.Event() for job in plan.jobs}
        self._network = Network()
        self._servers = [self._server(place, number) for number in range(plan.servers)]
        targets = [port for _, port in self._servers]
        self._agents = [self._agent(place, number, targets) for number in range(plan.agents)]
        people = self._network.add("people", targets, plan.seed)
        self._person = Person(people.port, TOKENS["admin"], self._over)
        self._replicas = Replicas(root, plan.runtime, place.environment, self.agent_ids)

    def play(self) -> Outcome:
        """Raises NeverSettled, and AssertionError for a service that did not do what it was told."""
        self._started = time.monotonic()
        try:
            for service, _ in self._servers:
                service.start()
            for service in self._agents:
                service.start()
            operations = [(job.at, self._submit, (job,)) for job in self._plan.jobs]
            operations += [(o.at, self._operate, (o,)) for o in self._plan.operations]  # type: ignore[misc]
            for at, work, values in operations:
                self._spawn(at, work, *values)
            self._join()
            self._heal()
            details = self._settle()
            logs = {name: self._person.log(name) for name in details}
            outcome = self._outcome(details, logs)
            for service in [*self._agents, *(server for server, _ in self._servers)]:
                status = service.stop(signal.SIGTERM)
                assert status == 0, (
                    f"{service.name} was told to end and ended with {status}: see {service.log}"
                )
            outcome.seconds = time.monotonic() - self._started
            return outcome
        finally:
            self._close()

    def agent_ids(self) -> list[str]:
        files = [self._root / f"agent-{n}" / "agent.json" for n in range(self._plan.agents)]
        return [json.loads(file.read_text())["agent_id"] for file in files if file.exists()]

    # The parts.

    def _server(self, place: Place, number: int) -> tuple[Service, int]:
        port = free_port()
        data = self._root / "data"
        arguments = [
            "--data-dir",
            str(data),
            "--port",
            str(port),
            "--lease-seconds",
            str(LEASE_S[self._plan.runtime]),
        ]
        arguments += ["--retries", str(RETRIES)]
        if number == 0:
            for role, token in TOKENS.items():
                (self._root / role).write_text(token)
            self._database = place.database()
        for role in TOKENS:
            arguments += ["--token-file", f"{role}={self._root / role}"]
        if self._database:
            arguments += ["--database", self._database]
        knobs = {**SERVER_KNOBS, "silent_after_s": SILENT_S[self._plan.runtime]}
        return Service(place.forge, "server", f"server-{number}", arguments, self._root, knobs), port

    def _agent(self, place: Place, number: int, targets: list[int]) -> Service:
        name = f"agent-{number}"
        proxy = self._network.add(name, targets, self._plan.seed)
        arguments = ["--server", f"http://127.0.0.1:{proxy.port}", "--token-file", str(self._root / "agent")]
        arguments += ["--state-dir", str(self._root / name), "--name", name]
        arguments += ["--runtime", self._plan.runtime, "--memory-gb", "16"]
        arguments += ["--job-dir-root", str(self._root / "jobs")]
        if place.python:
            arguments += ["--python", place.python]
        if self._plan.agents > 1:
            arguments += ["--cpus", str(number)]
        return Service(place.forge, "agent", name, arguments, self._root, AGENT_KNOBS)

    def _training_input(self, job: PlannedJob) -> dict[str, Any]:
        directory = self._root / "jobs" / job.name
        directory.mkdir(parents=True)
        gang: dict[str, Any] = {"scaleTier": "CUSTOM", "masterType": "local-1", "jobDir": str(directory)}
        script = json.dumps(job.script)
        configs = ["master", "worker"] if job.workers else ["master"]
        if job.workers:
            gang |= {"workerType": "local-1", "workerCount": str(job.workers)}
        if self._plan.runtime == "process":
            return {**gang, "pythonModule": "chaos_program", "args": [script]}
        shutil.copy(program.__file__, directory / "program.py")
        command = ["python3", "-S", "-E", str(directory / "program.py"), script]
        config = {"imageUri": self._image, "containerCommand": command}
        return {**gang, **{f"{task}Config": config for task in configs}}

    # What happens.

    def _spawn(self, at: float, work: Callable[..., None], *values: Any) -> None:
        def run() -> None:
            if not self._over.wait(max(0.0, self._started + at - time.monotonic())):
                try:
                    work(*values)
                except (AssertionError, GaveUp) as error:
                    self._trouble.append(str(error))

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        self._threads.append(thread)

    def _join(self) -> None:
        """All that was planned has happened. Who asks is heard at the latest when everything is healed."""
        for thread in self._threads[len(self._plan.jobs) :]:
            thread.join(60)

    def _submit(self, job: PlannedJob) -> None:
        told = self._told[job.name]
        told.submitted = answer = self._person.submit(job.name, self._training_input(job))
        assert answer.status in (200, 409), f"{job.name} was refused: {answer}"
        self._is_submitted[job.name].set()
        self._person.follow(job.name, told.followed)

    def _operate(self, operation: Operation) -> None:
        getattr(self, f"_{operation.kind}")(**operation.values)

    def _cancel(self, job: int, times: int) -> None:
        name = self._plan.jobs[job].name

        def ask() -> None:
            self._is_submitted[name].wait(60)
            for _ in range(times):
                self._told[name].cancels.append(self._person.cancel(name))

        self._spawn(0.0, ask)  # nobody waits for it: the service may be away

    def _kill_server(self, down_s: float) -> None:
        self._any_server().down(signal.SIGKILL, down_s)

    def _end_server(self, down_s: float) -> None:
        self._any_server().down(signal.SIGTERM, down_s)

    def _pause_server(self, down_s: float) -> None:
        self._any_server().pause(down_s)

    def _kill_agent(self, agent: int, down_s: float) -> None:
        self._agents[agent].down(signal.SIGKILL, down_s)

    def _end_agent(self, agent: int, down_s: float) -> None:
        self._agents[agent].down(signal.SIGTERM, down_s)

    def _pause_agent(self, agent: int, down_s: float) -> None:
        self._agents[agent].pause(down_s)

    def _kill_program(self, which: int) -> None:
        self._replicas.kill(which)

    def _pause_program(self, which: int, for_s: float) -> None:
        self._replicas.pause(which, for_s)

    def _kill_supervisor(self, which: int) -> None:
        self._replicas.kill_supervisor(which)

    def _disturb(self, side: str, for_s: float, **faults: float) -> None:
        self._change(side, Weather(**faults), for_s)

    def _cut(self, side: str, how: str, for_s: float) -> None:
        self._change(side, Weather(link=how), for_s)

    def _jump(self, who: str, seconds: float, for_s: float) -> None:
        service = self._any_server() if who == "server" else self._agents[int(who.partition("-")[2])]
        service.shift(seconds)
        time.sleep(for_s)
        service.shift(0)

    def _change(self, side: str, weather: Weather, for_s: float) -> None:
        self._network.change(side, weather)
        time.sleep(for_s)
        self._network.change(side, CALM)

    def _any_server(self) -> Service:
        return self._servers[int(time.monotonic() * 1000) % len(self._servers)][0]

    # The end.

    def _heal(self) -> None:
        for side in self._network.proxies:
            self._network.change(side, CALM)
        for job in self._plan.jobs:
            if job.endless:
                self._cancel(self._plan.jobs.index(job), 1)

    def _settle(self) -> dict[str, JobDetail]:
        """Wait until every job has ended, everybody has heard of it, and the machines are clear."""
        give_up_at = time.monotonic() + _PATIENCE_S[self._plan.runtime]
        details: dict[str, JobDetail] = {}
        while time.monotonic() < give_up_at:
            if self._trouble:
                raise AssertionError("; ".join(self._trouble))
            if all(event.is_set() for event in self._is_submitted.values()):
                open_ = [
                    n for n in self._told if n not in details or details[n].state not in FINAL_JOB_STATES
                ]
                details |= {name: self._person.detail(name) for name in open_}
                ended = all(detail.state in FINAL_JOB_STATES for detail in details.values())
                if ended and not self._left() and all(not t.is_alive() for t in self._threads):
                    return {name: self._person.detail(name) for name in self._told}
            time.sleep(0.1)
        states = {name: (detail.state.value, detail.waiting) for name, detail in details.items()}
        followed = {name: told.followed.summary is not None for name, told in self._told.items()}
        raise NeverSettled(
            f"after {_PATIENCE_S[self._plan.runtime]} s: {states}, followed to the end: {followed}, "
            f"left: {self._left()}"
        )

    def _left(self) -> list[str]:
        """What the agents have not cleared away yet."""
        places = [
            self._root / f"agent-{number}" / name
            for number in range(self._plan.agents)
            for name in ("runs", "environments", "containers", "staging")
        ]
        return [str(path) for place in places if place.is_dir() for path in place.iterdir()]

    def _outcome(self, details: dict[str, JobDetail], logs: dict[str, Log]) -> Outcome:
        counts: dict[str, int] = {}
        for proxy in self._network.proxies.values():
            for what, count in proxy.counts.items():
                counts[what] = counts.get(what, 0) + count
        return Outcome(
            plan=self._plan,
            root=self._root,
            told=self._told,
            details=details,
            logs=logs,
            jobs=self._person.jobs(),
            harmed=self._replicas.harmed,
            agent_ids=self.agent_ids(),
            trouble=self._trouble,
            faults=counts,
            seconds=0.0,
        )

    def _close(self) -> None:
        self._over.set()
        for service in [*self._agents, *(server for server, _ in self._servers)]:
            service.kill()
        self._network.close()
        self._replicas.close()
