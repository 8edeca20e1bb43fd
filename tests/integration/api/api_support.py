"""Helpers of the API tests: a manual clock, a scripted agent, a server on a port."""

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from http.cookiejar import CookieJar, DefaultCookiePolicy
from pathlib import Path
from typing import Any, Self

import anyio.from_thread
import httpx
import uvicorn
from fastapi import FastAPI

from beds import databases
from trainyard_protocol import __version__
from trainyard_protocol.answers.usage import GpuUsage, UsageBatch, UsageSample
from trainyard_protocol.job.custom_job_training import create_request
from trainyard_protocol.job.custom_jobs import CustomJob
from trainyard_protocol.job.resources import Capacity, Gpu
from trainyard_protocol.job.tuning_jobs import HyperparameterTuningJob
from trainyard_protocol.states import Reason, ReplicaState
from trainyard_protocol.wire.agents import AGENT_KEY, AgentInfo, RuntimeName
from trainyard_protocol.wire.logs import LogChunk, LogEnd, LogLine, LogReceipt, digest
from trainyard_protocol.wire.sync import (
    ExitReport,
    ReplicaReport,
    RunOrder,
    RunReport,
    SyncRequest,
    SyncResponse,
    TrialMeasurement,
)
from trainyard_server.app import create_app
from trainyard_server.config.settings import Settings
from trainyard_server.domain.access.agent_keys import AgentKey
from trainyard_server.domain.access.permissions import Caller, Role, Token
from trainyard_server.storage.logs.store import Stream
from trainyard_server.use_cases import UseCases

TOKENS = (
    Token(Role.ADMIN, "admin", "admin-secret"),
    Token(Role.AGENT, "agent", "agent-secret"),
    Token(Role.SUBMITTER, "alice", "alices-secret"),
    Token(Role.SUBMITTER, "bob", "bobs-secret"),
    Token(Role.VIEWER, "vera", "veras-secret"),
)
ADMIN, AGENT, ALICE, BOB, VERA = ({"Authorization": f"Bearer {token.secret}"} for token in TOKENS)
KEY = AgentKey("0" * 64)
AGENT[AGENT_KEY] = KEY.secret
BOSS = Caller.everywhere(Role.ADMIN, "admin")
GB = 10**9
T4 = "NVIDIA_TESLA_T4"
WITH_GPU: dict[str, Any] = {
    "masterType": "n1-standard-4",
    "masterConfig": {"acceleratorConfig": {"type": T4, "count": 1}},
}
"""The training input of a job on a GPU."""
START = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)


class Clock:
    """A clock that stands still until it is told to go on, or is set; its stopwatch only goes on."""

    def __init__(self) -> None:
        self.now = START
        self._passed = 0.0

    def __call__(self) -> datetime:
        return self.now

    def stopwatch(self) -> float:
        return self._passed

    def advance(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)
        self._passed += seconds

    def jump(self, seconds: float) -> None:
        """Set the time of day, without time passing."""
        self.now += timedelta(seconds=seconds)


def settings(data_dir: Path, **changes: Any) -> Settings:
    given: dict[str, Any] = {
        "data_dir": data_dir,
        "database": databases.current.url(data_dir),
        "tokens": TOKENS,
        "allowed_hosts": ("server",),
        "run_loops": False,
        "durable": False,
    }
    return Settings(**(given | changes))


@contextmanager
def server(data_dir: Path, clock: Clock, **changes: Any) -> Iterator["Server"]:
    """The application in this process, without a socket and without loops."""
    app = create_app(settings(data_dir, **changes), clock, clock.stopwatch)
    with Client(app) as client:
        yield Server(app, client, clock)


class Client:
    """httpx, blocking, straight into an application; an exception in there is a 500 as on a socket. It keeps no
    cookies: each call says by itself who makes it."""

    def __init__(self, app: FastAPI) -> None:
        self._app = app
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        self._portal = self._stack.enter_context(anyio.from_thread.start_blocking_portal())
        wrap = self._portal.wrap_async_context_manager
        self._stack.enter_context(wrap(self._app.router.lifespan_context(self._app)))
        transport = httpx.ASGITransport(self._app, raise_app_exceptions=False)
        nobodys = CookieJar(DefaultCookiePolicy(allowed_domains=[]))
        client = httpx.AsyncClient(transport=transport, base_url="http://server", cookies=nobodys)
        self._client = self._stack.enter_context(wrap(client))
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def request(self, method: str, path: str, **given: Any) -> httpx.Response:
        return self._portal.call(partial(self._client.request, method, path, **given))

    def run(self, function: Callable[..., Any], *given: Any) -> Any:
        """Calls something asynchronous in the application's loop."""
        return self._portal.call(function, *given)

    def get(self, path: str, **given: Any) -> httpx.Response:
        return self.request("GET", path, **given)

    def post(self, path: str, **given: Any) -> httpx.Response:
        return self.request("POST", path, **given)

    def patch(self, path: str, **given: Any) -> httpx.Response:
        return self.request("PATCH", path, **given)

    def put(self, path: str, **given: Any) -> httpx.Response:
        return self.request("PUT", path, **given)

    def delete(self, path: str, **given: Any) -> httpx.Response:
        return self.request("DELETE", path, **given)


class Server:
    def __init__(self, app: FastAPI, client: Client, clock: Clock) -> None:
        self.app = app
        self.client = client
        self.clock = clock
        self.use_cases: UseCases = app.state.use_cases

    def get(self, path: str, /, **params: Any) -> Any:
        return self.done("GET", path, params=params or None)

    def done(self, method: str, path: str, who: dict[str, str] = ADMIN, **given: Any) -> Any:
        """The JSON of a call that succeeds."""
        answer = self.client.request(method, path, headers=who, **given)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def status(self, method: str, path: str, who: dict[str, str] = ADMIN, **given: Any) -> int:
        return self.client.request(method, path, headers=who, **given).status_code

    def refusal(
        self, method: str, path: str, code: int, says: str = "", who: dict[str, str] = ADMIN, **given: Any
    ) -> dict[str, Any]:
        """The error of a call that is refused with this code, and with these words in its answer."""
        answer = self.client.request(method, path, headers=who, **given)
        assert (answer.status_code, says in answer.text.replace('\\"', '"')) == (code, True), answer.text
        error: dict[str, Any] = answer.json()["error"]
        assert error["code"] == code
        return error

    def submit(
        self,
        job_id: str = "job",
        who: dict[str, str] = ADMIN,
        project: str = "p",
        labels: dict[str, str] | None = None,
        params: dict[str, str] | None = None,
        **training_input: Any,
    ) -> httpx.Response:
        """The answer to the submission of a package's job."""
        body = {"jobId": job_id, "trainingInput": package_job(**training_input)}
        body |= {"labels": labels} if labels else {}
        return self.client.post(f"/v1/projects/{project}/jobs", json=body, params=params, headers=who)

    def create(self, job_id: str = "job", **given: Any) -> dict[str, Any]:
        answer = self.submit(job_id, **given)
        assert answer.status_code == 200, answer.text
        created: dict[str, Any] = answer.json()
        return created

    def upload(
        self, content: bytes = b"package", name: str = "trainer-0.0.0.tar.gz", who: dict[str, str] = ADMIN
    ) -> dict[str, Any]:
        """A package in the server's staging: its uri, size and sha256."""
        path = f"/upload/trainyard/v1/projects/p/packages/{name}"
        staged: dict[str, Any] = self.done("POST", path, who, content=content)
        return staged

    def delete_job(self, job_id: str = "job", who: dict[str, str] = ADMIN) -> None:
        self.done("DELETE", f"/trainyard/v1/projects/p/jobs/{job_id}", who)

    def set_role(self, name: str, role: str, project: str = "p", who: dict[str, str] = ADMIN) -> int:
        """The status of the call."""
        return self.status("PUT", f"/trainyard/v1/projects/{project}/members/{name}", who, json={"role": role})

    def token(self, who: dict[str, str] = ADMIN, **request: Any) -> tuple[str, dict[str, str]]:
        """The id of a new token, and the header of its owner."""
        made = self.done("POST", "/trainyard/v1/tokens", who, json=request)
        return made["token"]["token_id"], {"Authorization": f"Bearer {made['secret']}"}

    def session(self, name: str) -> dict[str, str]:
        """The headers of a page in a new session of the owner of one of TOKENS, or of a token that was made."""
        credential = next((token.credential for token in TOKENS if token.name == name), name)
        session = self.use_cases.sessions.open(credential, self.clock())
        return {"Cookie": f"trainyard-80={session.value}", "X-CSRF-Token": session.csrf}

    def job(self, job_id: str = "job") -> dict[str, Any]:
        found: dict[str, Any] = self.get(f"/v1/projects/p/jobs/{job_id}")
        return found

    def detail(self, job_id: str = "job") -> dict[str, Any]:
        found: dict[str, Any] = self.get(f"/trainyard/v1/projects/p/jobs/{job_id}")
        return found

    def cancel(self, job_id: str = "job") -> None:
        answer = self.client.post(f"/v1/projects/p/jobs/{job_id}:cancel", headers=ADMIN)
        assert (answer.status_code, answer.json()) == (200, {})

    def events(self, job_id: str = "job") -> list[str]:
        return [event["message"] for event in self.detail(job_id)["events"] if event["message"]]

    def stream(self, job_id: str = "job", **params: Any) -> list[tuple[str, dict[str, Any], str]]:
        """Everything that a stream without `follow` sends: (event, data, id)."""
        headers = ADMIN | ({"Last-Event-ID": params.pop("last")} if "last" in params else {})
        answer = self.client.get(f"/trainyard/v1/projects/p/jobs/{job_id}/logs", params=params, headers=headers)
        assert answer.status_code == 200, answer.text
        assert answer.headers["content-type"].startswith("text/event-stream")
        return list(parse_events(answer.text))

    def log(self, job_id: str = "job", **params: Any) -> list[dict[str, Any]]:
        """The lines of a job's log."""
        return [data for kind, data, _ in self.stream(job_id, **params) if kind == "log"]

    def texts(self, job_id: str = "job", **params: Any) -> list[str]:
        return [data["text"] for data in self.log(job_id, **params)]

    def tick(self, seconds: float = 0) -> None:
        self.clock.advance(seconds)
        self.use_cases.controller.tick()


def custom_job(module: str = "trainer.task", **package: Any) -> dict[str, Any]:
    """A custom job of Vertex AI with one replica, which runs a module."""
    image = "us-docker.pkg.dev/vertex-ai/training/tf-cpu.2-15.py310:latest"
    spec = {"executorImageUri": image, "packageUris": ["gs://b/t-1.tar.gz"], "pythonModule": module, **package}
    pool = {"machineSpec": {"machineType": "local-1"}, "replicaCount": 1, "pythonPackageSpec": spec}
    return {"displayName": "A custom job", "jobSpec": {"workerPoolSpecs": [pool]}}


def tuning_job(**fields: Any) -> dict[str, Any]:
    """A hyperparameter tuning job of Vertex AI, whose trials have one replica."""
    rate = {"parameterId": "lr", "doubleValueSpec": {"minValue": 0.001, "maxValue": 0.1}}
    spec = custom_job(packageUris=[], args=["--epochs", "3"])["jobSpec"]
    given = {
        "displayName": "A tuning job",
        "studySpec": {"metrics": [{"metricId": "accuracy", "goal": "MAXIMIZE"}], "parameters": [rate]},
        "maxTrialCount": 4,
        "parallelTrialCount": 1,
        "trialJobSpec": {**spec, "baseOutputDirectory": {"outputUriPrefix": "gs://b/out"}},
    }
    return given | fields


def of_custom_job(given: dict[str, Any], job_id: str, location: str) -> dict[str, Any]:
    """The create request of v1 by which a custom job has that id."""
    return create_request(CustomJob.model_validate(given), job_id, location)


def of_tuning_job(given: dict[str, Any], job_id: str, location: str) -> dict[str, Any]:
    """The create request of v1 by which a tuning job has that id."""
    from trainyard_server.capabilities.google.tuning_jobs import training as tuning_jobs

    return tuning_jobs.create_request(HyperparameterTuningJob.model_validate(given), job_id, location)


def package_job(**changes: Any) -> dict[str, Any]:
    """One chief of type local-1, or as `changes` say."""
    given = {"scaleTier": "CUSTOM", "masterType": "local-1", "pythonModule": "trainer.task"}
    return given | changes


def parse_events(text: str) -> Iterator[tuple[str, Any, str]]:
    for block in text.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
        if "event" in fields:
            yield fields["event"], json.loads(fields["data"]), fields.get("id", "")


class ScriptedAgent:
    """An agent whose replicas do what the test says. It reports over HTTP like a real one."""

    def __init__(
        self,
        server: Server,
        name: str = "laptop",
        *,
        cpus: int = 2,
        memory_gb: float = 8,
        mode: str = "strict",
        runs_images: bool = False,
        gpus: tuple[str, ...] = (),
        **info: Any,
    ) -> None:
        self.server = server
        self.activity = ""
        self.choice: tuple[RuntimeName | None, str] = (None, "")
        self.info = AgentInfo(
            agent_id=f"id-of-{name}",
            name=name,
            version=__version__,
            runtime="fake",
            capacity_mode=mode,
            runs_images=runs_images,
            capacity=Capacity(
                cpus=tuple(range(cpus)),
                memory_bytes=round(memory_gb * GB),
                gpus=tuple(Gpu(id=gpu, type=T4, memory_bytes=16 * GB) for gpu in gpus),
            ),
            replica_environment={"STORAGE_EMULATOR_HOST": "http://127.0.0.1:9"},
        )
        self.change(**info)
        self.runs: dict[str, RunOrder] = {}
        self.replicas: dict[tuple[str, str], ReplicaReport] = {}
        self.response = SyncResponse(version="", lease_s=None, runs=())
        self.shipped: dict[tuple[str, str], int] = {}
        self.measured: dict[str, tuple[TrialMeasurement, ...]] = {}
        self.other_metrics: dict[str, dict[str, TrialMeasurement]] = {}

    def sync(self) -> SyncResponse:
        request = SyncRequest(agent=self.info, runs=self.reports(), seen=self.response.version)
        answer = self.server.client.post("/agent/v1/sync", content=request.model_dump_json(), headers=AGENT)
        assert answer.status_code == 200, answer.text
        self.response = SyncResponse.model_validate_json(answer.content)
        self.runs = {order.run_id: order for order in self.response.runs}
        for order in self.response.runs:
            for number, replica in enumerate(order.replicas):
                self.replicas.setdefault(
                    (order.run_id, replica.task),
                    ReplicaReport(task=replica.task, state=ReplicaState.PENDING, address=f"127.0.0.1:{2222 + number}"),
                )
        return self.response

    def change(self, **info: Any) -> Self:
        """Report this from the next sync on."""
        self.info = self.info.model_copy(update=info)
        return self

    def reports(self) -> tuple[RunReport, ...]:
        return tuple(
            RunReport(
                run_id=run_id,
                replicas=tuple(r for (owner, _), r in self.replicas.items() if owner == run_id),
                activity=self.activity,
                runtime=self.choice[0],
                runtime_reason=self.choice[1],
                measurements=self.measured.get(run_id, ()),
                other_metrics=self.other_metrics.get(run_id, {}),
            )
            for run_id in self.runs
        )

    def measure(self, run: RunOrder, *values: float) -> None:
        """The metric file of a trial has these values, of the steps 1, 2, ..."""
        measured = [TrialMeasurement(step=step, value=value) for step, value in enumerate(values, 1)]
        self.measured[run.run_id] = tuple(measured)

    @property
    def run(self) -> RunOrder:
        """The only run that it has."""
        (order,) = self.runs.values()
        return order

    def turn(self, seconds: float = 0, *others: "ScriptedAgent") -> None:
        """The queue goes on after some time, and the agent gets what is for it."""
        self.server.tick(seconds)
        for agent in (self, *others):
            agent.sync()

    def begin(self, seconds: float = 0) -> RunOrder:
        """The queue goes on, and all replicas of the only run run."""
        self.turn(seconds)
        self.start()
        return self.run

    def start(self, run: RunOrder | None = None) -> None:
        """All replicas run."""
        run = run or self.run
        for replica in run.replicas:
            self._set(run, replica.task, state=ReplicaState.RUNNING, started_at=self.server.clock())
        self.sync()

    def exit(
        self,
        task: str = "master-replica-0",
        code: int | None = 0,
        reason: Reason | None = None,
        run: RunOrder | None = None,
        after_stop: bool = False,
        logs: bool = True,
        message: str = "",
    ) -> None:
        """A replica ends; with `logs` its log is ended as well, before the report."""
        run = run or self.run
        if reason is None:
            reason = Reason.COMPLETED if code == 0 else Reason.PROGRAM_ERROR
        ended = ExitReport(
            code=code, reason=reason, message=message, finished_at=self.server.clock(), after_stop=after_stop
        )
        self._set(run, task, state=ReplicaState.EXITED, exit=ended)
        if logs:
            self.end_log(task, run=run)
        self.sync()

    def stopped(self, task: str, **given: Any) -> None:
        self.exit(task, code=143, reason=Reason.STOPPED, after_stop=True, **given)

    def use(
        self, task: str = "master-replica-0", run: RunOrder | None = None, gpu: float | None = None, **given: Any
    ) -> None:
        """A measurement of what a replica uses; `gpu`: the utilization of the first GPU."""
        busy = (GpuUsage(id="GPU-0", utilization=gpu, memory_total=16),) if gpu is not None else ()
        usual: dict[str, Any] = {"time": self.server.clock(), "cpu": 1.0, "gpus": busy}
        sample = UsageSample(run_id=(run or self.run).run_id, task=task, **(usual | given))
        self.server.done("POST", "/agent/v1/usage", AGENT, content=UsageBatch(samples=(sample,)).model_dump_json())

    def report_steps(self, **values: float | list[float]) -> None:
        """Steps 1, 2, ... of the program with these values of metrics, which the server has counted."""
        columns = {name: given if isinstance(given, list) else [given] for name, given in values.items()}
        rows = zip(*columns.values(), strict=True)
        lines = [{"step": step, **dict(zip(columns, row, strict=True))} for step, row in enumerate(rows, 1)]
        self.log(*map(json.dumps, lines))
        self.server.use_cases.backend.progress.flush()

    def log(self, *texts: str, task: str = "master-replica-0", run: RunOrder | None = None) -> LogReceipt:
        """Lines are sent in chunks, as agents do."""
        run = run or self.run
        for first in range(0, max(1, len(texts)), 1000):
            start = self.shipped.get((run.run_id, task), 0)
            part = tuple(map(line, texts[first : first + 1000]))
            receipt = self.ship(task, LogChunk.of(start, part), run)
            self.shipped[run.run_id, task] = receipt.next
        return receipt

    def end_log(
        self, task: str = "master-replica-0", texts: tuple[str, ...] = (), run: RunOrder | None = None
    ) -> LogReceipt:
        """The whole log at once, what is there already included, and its end."""
        run = run or self.run
        have = self.server.use_cases.backend.logs
        known = have.tail(run.project, run.job_id, Stream(run.number, task), 10_000)
        lines = [line(text) for text in (*known, *texts)]
        end = LogEnd(count=len(lines), sha256=digest(lines))
        return self.ship(task, LogChunk.of(len(known), tuple(lines[len(known) :]), end=end), run)

    def ship(self, task: str, chunk: LogChunk, run: RunOrder) -> LogReceipt:
        answer = self.server.client.post(
            f"/agent/v1/runs/{run.run_id}/replicas/{task}/logs", content=chunk.model_dump_json(), headers=AGENT
        )
        assert answer.status_code == 200, answer.text
        return LogReceipt.model_validate_json(answer.content)

    def _set(self, run: RunOrder, task: str, **changes: Any) -> None:
        before = self.replicas[run.run_id, task]
        self.replicas[run.run_id, task] = before.model_copy(update=changes)


def running_agent(
    server: Server, job_id: str = "job", *, agent: ScriptedAgent | None = None, **training_input: Any
) -> ScriptedAgent:
    """An agent that runs this job, which it alone has."""
    agent = agent or ScriptedAgent(server)
    agent.sync()
    server.create(job_id, **training_input)
    agent.begin()
    return agent


def gpu_agent(server: Server) -> ScriptedAgent:
    """An agent with one GPU, which has joined."""
    agent = ScriptedAgent(server, cpus=4, memory_gb=64, gpus=("GPU-0",))
    agent.sync()
    return agent


def line(text: str, stream: str = "stdout") -> LogLine:
    return LogLine.parse({"time": "2026-11-20T12:00:00Z", "stream": stream, "text": text})


@contextmanager
def serving(app: FastAPI, port: int = 0) -> Iterator[str]:
    """An application that runs already behind a real socket on the loopback interface; gives its address."""
    with socket.create_server(("127.0.0.1", port)) as listener:
        config = uvicorn.Config(app, log_config=None, lifespan="off", timeout_graceful_shutdown=2)
        uvicorn_server = uvicorn.Server(config)
        thread = threading.Thread(target=uvicorn_server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            eventually(lambda: uvicorn_server.started)
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            app.state.use_cases.backend.notifier.close()
            uvicorn_server.should_exit = True
            thread.join()


def eventually(holds: Callable[[], object], timeout_s: float = 60) -> None:
    """Waits until something holds; fails when it does not within the time."""
    deadline = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.005)
