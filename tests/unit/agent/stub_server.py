"""A server as an agent sees it: orders, reports, and the rule of log chunks. No jobs, no scheduler."""

import hashlib
import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx

from trainyard_agent.server_client import ServerClient
from trainyard_protocol.answers.secrets import RunSecrets
from trainyard_protocol.answers.usage import UsageBatch, UsageReceipt, UsageSample
from trainyard_protocol.errors import FailedPrecondition, NotFound, TrainyardError, Unavailable, to_body
from trainyard_protocol.job.resources import Capacity
from trainyard_protocol.wire.agents import AGENT_KEY, AgentInfo
from trainyard_protocol.wire.logs import LogChunk, LogLine, LogReceipt, digest
from trainyard_protocol.wire.sync import PackageLinks, ReplicaOrder, ReplicaReport, RunOrder, SyncRequest, SyncResponse

TOKEN, KEY = "agent-token", "0" * 64
_LOGS = re.compile(r"/agent/v1/runs/([^/]+)/replicas/([^/]+)/logs")
_SECRETS = re.compile(r"/agent/v1/runs/([^/]+)/secrets")
_LINKS = re.compile(r"/agent/v1/runs/([^/]+)/packages")
_LINK = re.compile(r"/link/([0-9a-f]{64})")
_STAGING = re.compile(r"/agent/v1/staging/([^/]+)/([^/]+)")


class StubServer:
    def __init__(self) -> None:
        self.orders: dict[str, RunOrder] = {}
        self.lease_s: float | None = None
        self.reports: dict[str, dict[str, ReplicaReport]] = {}
        self.requests: list[SyncRequest] = []
        self.logs: dict[tuple[str, str], list[LogLine]] = {}
        self.complete: set[tuple[str, str]] = set()
        self.chunks: list[LogChunk] = []
        self.packages: dict[str, bytes] = {}
        self.secrets: dict[str, str] | None = {}
        """None: it cannot give them now."""
        self.samples: list[UsageSample] = []
        self.down = False
        self.foreign: set[str] = set()
        self.before_chunk: Callable[[LogChunk], None] = lambda chunk: None
        self.after_chunk: Callable[[LogChunk], None] = lambda chunk: None
        """Raising here loses the answer after the chunk was taken."""

    def handle(self, path: str, body: bytes) -> tuple[int, bytes]:
        try:
            return 200, self._answer(path, body)
        except TrainyardError as error:
            return error.http_status, json.dumps(to_body(error)).encode()

    def _answer(self, path: str, body: bytes) -> bytes:
        if self.down:
            raise Unavailable("The server is down.")
        if path == "/agent/v1/sync":
            return self._sync(SyncRequest.model_validate_json(body)).model_dump_json().encode()
        if match := _LOGS.fullmatch(path):
            chunk = LogChunk.model_validate_json(body)
            return self._log((match[1], match[2]), chunk).model_dump_json().encode()
        if path == "/agent/v1/usage":
            return self._usage(UsageBatch.model_validate_json(body)).model_dump_json().encode()
        if match := _SECRETS.fullmatch(path):
            return self._secrets(match[1]).model_dump_json().encode()
        if match := _LINKS.fullmatch(path):
            return self._links(match[1]).model_dump_json().encode()
        if match := _LINK.fullmatch(path):
            return self.packages[match[1]]
        if (match := _STAGING.fullmatch(path)) and match[1] in self.packages:
            return self.packages[match[1]]
        raise NotFound(f"There is nothing at {path}.")

    def _sync(self, request: SyncRequest) -> SyncResponse:
        self.requests.append(request)
        self.reports = {run.run_id: {r.task: r for r in run.replicas} for run in request.runs}
        answer = SyncResponse(version="", lease_s=self.lease_s, runs=tuple(self.orders.values()))
        version = hashlib.sha256(answer.model_dump_json().encode()).hexdigest()
        return answer.model_copy(update={"version": version})

    def _secrets(self, run_id: str) -> RunSecrets:
        names = {one.name for one in self.orders[run_id].training_input.secrets}
        if self.secrets is None:
            raise Unavailable("The database is away.")
        if names - self.secrets.keys():
            raise FailedPrecondition("It was deleted.")
        return RunSecrets(values={name: self.secrets[name] for name in names})

    def _links(self, run_id: str) -> PackageLinks:
        uris = self.orders[run_id].training_input.package_uris
        return PackageLinks(paths={uri: f"/link/{uri.split('/')[2]}" for uri in uris if uri.startswith("staging")})

    def _usage(self, batch: UsageBatch) -> UsageReceipt:
        self.samples += batch.samples
        return UsageReceipt(taken=len(batch.samples))

    def _log(self, key: tuple[str, str], chunk: LogChunk) -> LogReceipt:
        if key[0] in self.foreign:
            raise NotFound("Not a run of ours.")
        self.before_chunk(chunk)
        self.chunks.append(chunk)
        lines = self.logs.setdefault(key, [])
        if chunk.start <= len(lines):
            lines += chunk.lines[len(lines) - chunk.start :]
        if chunk.end is not None and chunk.end.count == len(lines) and digest(lines) == chunk.end.sha256:
            self.complete.add(key)
        self.after_chunk(chunk)
        return LogReceipt(next=len(lines), complete=key in self.complete)

    def order(self, run_id: str, *tasks: str, target: str = "run", **training_input: Any) -> None:
        self.orders[run_id] = run_order(run_id, *tasks, target=target, **training_input)

    def stop(self, run_id: str) -> None:
        self.orders[run_id] = self.orders[run_id].model_copy(update={"target": "stop"})

    def texts(self, run_id: str, task: str) -> list[str]:
        return [line.text for line in self.logs.get((run_id, task), ())]

    def client(self) -> ServerClient:
        """A client that reaches this server without a socket."""

        def respond(request: httpx.Request) -> httpx.Response:
            assert request.headers["Authorization"] == f"Bearer {TOKEN}"
            assert request.headers[AGENT_KEY] == KEY
            status, content = self.handle(request.url.path, request.content)
            return httpx.Response(status, content=content)

        return ServerClient("http://stub", TOKEN, KEY, transport=httpx.MockTransport(respond))

    @contextmanager
    def listening(self) -> Iterator[str]:
        """The URL of this server on a real socket, for agents that are processes."""
        stub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def do_POST(self) -> None:
                self._respond(self.rfile.read(int(self.headers["Content-Length"])))

            def do_GET(self) -> None:
                self._respond(b"")

            def log_message(self, *_: object) -> None:
                return

            def _respond(self, body: bytes) -> None:
                with lock:
                    status, content = stub.handle(self.path, body)
                self.send_response(status)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            block_on_close = False

            def handle_error(self, *_: object) -> None:
                return  # an agent that was killed leaves its connection

        lock = threading.Lock()
        with Server(("127.0.0.1", 0), Handler) as server:
            thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
            thread.start()
            try:
                yield f"http://127.0.0.1:{server.server_address[1]}"
            finally:
                server.shutdown()
                thread.join()


def run_order(run_id: str, *tasks: str, target: str = "run", grace_s: float = 5.0, **training_input: Any) -> RunOrder:
    job = {"scaleTier": "CUSTOM", "masterType": "local-1", "pythonModule": "trainer.task", **training_input}
    return RunOrder.model_validate(
        {
            "run_id": run_id,
            "number": 1,
            "target": target,
            "project": "p",
            "job_id": "j",
            "training_input": job,
            "replicas": [
                ReplicaOrder(task=task, machine_type="local-1", cpus=(), memory_bytes=1 << 30)
                for task in tasks or ("master-replica-0",)
            ],
            "grace_s": grace_s,
        }
    )


def agent_info(**changes: Any) -> AgentInfo:
    """An agent with two CPUs and a fake runtime, or as `changes` say."""
    given = {"runtime": "fake", "runs_images": False, "capacity": Capacity(cpus=(0, 1), memory_bytes=8 << 30)}
    return AgentInfo(agent_id="a", name="a", version="0", capacity_mode="fit", **given | changes)
