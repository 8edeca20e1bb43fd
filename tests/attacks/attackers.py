"""Kinds of attacks over the network, each one step that is repeated until it is told to stop.

Whatever becomes of a connection is no concern of an attacker: the server may be gone.
"""

import contextlib
import io
import json
import random
import socket
import tarfile
import threading
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from beds.token_files import long_token

TIMEOUT_S = 5.0
_MOST_HELD = 100


class Attacker:
    """One of several at the same time, with connections that it holds open."""

    def __init__(self, port: int, run_id: str, seed: int, statuses: set[int]) -> None:
        self.port = port
        self.run_id = run_id
        self.random = random.Random(seed)
        self._statuses = statuses
        self._held: list[socket.socket] = []

    def close(self) -> None:
        while self._held:
            self._held.pop().close()

    def send(self, data: bytes, *, part: float = 1.0, hold: bool = False) -> None:
        """Send the first part of a request, and read the status of the answer to a whole one."""
        with contextlib.suppress(OSError):
            connection = socket.create_connection(("127.0.0.1", self.port), timeout=TIMEOUT_S)
            try:
                connection.sendall(data[: int(len(data) * part)])
                if part == 1.0 and (answer := connection.recv(2048)):
                    self._statuses.add(int(answer[9:12]))
            finally:
                if hold:
                    self._held.append(connection)
                    if len(self._held) > _MOST_HELD:
                        self._held.pop(0).close()
                else:
                    connection.close()


def request(method: str, path: str, body: bytes = b"", role: str = "", *headers: str, length: int = 0) -> bytes:
    """A request; `length` is a lie about its body."""
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost", *headers]
    if role:
        lines.append(f"Authorization: Bearer {long_token(role)}")
    if body or length:
        lines.append(f"Content-Length: {length or len(body)}")
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


def half_open(attacker: Attacker) -> None:
    whole = request("POST", "/v1/projects/p/jobs", b"{" + b" " * 1000, "submitter")
    attacker.send(whole, part=attacker.random.random(), hold=True)


def guesses(attacker: Attacker) -> None:
    """Wrong tokens, codes and cookies, on the sign-in page and in calls."""
    guess = f"{attacker.random.getrandbits(200):x}"
    form = "Content-Type: application/x-www-form-urlencoded"
    token = attacker.random.choice((guess, f"trainyard_{guess}"))
    attacker.send(
        attacker.random.choice(
            (
                request("POST", "/sign-in", f"token={token}".encode(), "", form),
                request("POST", "/sign-in", f"code={guess}.{guess}.{guess}".encode(), "", form),
                request("GET", "/v1/projects/p/jobs", b"", "", f"Authorization: Bearer {token}"),
                request("GET", "/", b"", "", f"Cookie: trainyard-{attacker.port}={guess}.1.2.{guess}"),
            )
        )
    )


def bodies(attacker: Attacker) -> None:
    """Large and hostile JSON and YAML, half of it cut off in the middle."""
    config = attacker.random.choice(
        ("a: " + "[" * 5000, "a: &a [*a]", "x" * 60_000, "a: 0x" + "f" * 5000, '"\\U00110000": 1', "- \0")
    )
    body = attacker.random.choice(
        (
            b"[" * 1_000_000,
            b'{"a":' * 200_000,
            b'{"jobId": "\\ud800", "labels": {"\\u0000": "' + b"x" * 900_000 + b'"}}',
            b'{"jobId": ' + b"9" * 100_000 + b"}",
            b'{"jobId": "a", "trainingInput": {"args": [' + b"{}," * 300_000 + b"{}]}}",
            b"\xff" * 1_000_000,
            b"x" * 3_000_000,
        )
    )
    part = attacker.random.choice((1.0, attacker.random.random()))
    check = json.dumps({"config": config}).encode()
    attacker.send(request("POST", "/trainyard/v1/projects/p/configs:check", check, "submitter"), part=part)
    attacker.send(request("POST", "/v1/projects/p/jobs", body, "submitter"), part=part)


def uploads(attacker: Attacker) -> None:
    """Packages, most of them cut off in the middle, with names and archives that lead elsewhere."""
    name = attacker.random.choice(("a.tar.gz", "b.whl", "..%2f..%2fc.tar.gz", "%2e%2e.zip", "d%00.tar.gz", "e.exe"))
    content = attacker.random.choice((*archives(), attacker.random.randbytes(1_000_000)))
    path = f"/upload/trainyard/v1/projects/p/packages/{name}"
    length = attacker.random.choice((0, len(content) + 1000))
    part = attacker.random.choice((1.0, 0.5, attacker.random.random())) if not length else 0.999
    attacker.send(request("POST", path, content, "submitter", length=length), part=part, hold=part < 1)


def event_streams(attacker: Attacker) -> None:
    """Followed logs and live pages, dropped after their beginning."""
    followed = "/trainyard/v1/projects/p/jobs/job/logs?follow=true"
    path = attacker.random.choice((followed, "/live/projects/p/jobs/job/logs", "/live/", "/live/cluster"))
    attacker.send(request("GET", path, b"", "submitter"), hold=attacker.random.random() < 0.8)


def lying_agents(attacker: Attacker) -> None:
    """Reports on the run of another agent, with impossible values, and messages that are none."""
    key = f"X-Trainyard-Agent-Key: {attacker.random.getrandbits(256):064x}"
    path, message = attacker.random.choice(lies(attacker.run_id, attacker.random))
    part = attacker.random.choice((1.0, 1.0, attacker.random.random()))
    attacker.send(request("POST", path, json.dumps(message).encode(), "agent", key), part=part)


def lies(run: str, random: random.Random) -> list[tuple[str, object]]:
    """Path and message of reports that no agent of ours sends: some valid and untrue, some impossible."""
    liar: dict[str, object] = {
        "agent_id": random.choice(("liar", "", "../x", "\u0000", f"liar-{random.randrange(20)}")),
        "name": random.choice(("liar", "\u202e" * 100, "x" * 10_000)),
        "version": "0",
        "runtime": "process",
        "capacity_mode": "strict",
        "runs_images": False,
        "capacity": {"cpus": [], "memory_bytes": random.choice((0, -1, 2**63, 1e308))},
    }
    ended = {
        "code": random.choice((0, 2**70)),
        "reason": "COMPLETED",
        "message": "",
        "finished_at": "9999-12-31T23:59:59Z",
    }
    replica = {"task": "master-replica-0", "state": "EXITED", "exit": ended | {"after_stop": False}, "address": "x:1"}
    line = {"time": "2026-11-20T12:00:00Z", "stream": "stdout", "texts": ["line 1"]}
    log = f"/agent/v1/runs/{run}/replicas/master-replica-0/logs"
    sample = {
        "run_id": run,
        "task": "master-replica-0",
        "time": "0001-01-01T00:00:00Z",
        "cpu": 1e308,
        "memory_bytes": 2**63,
    }
    return [
        ("/agent/v1/sync", {"agent": liar, "runs": [{"run_id": run, "replicas": [replica]}], "seen": "", "wait_s": 0}),
        ("/agent/v1/sync", {"agent": liar, "runs": [{"run_id": run, "replicas": []}] * 2000}),
        ("/agent/v1/sync", {"agent": liar | {"capacity": None}, "runs": [{}] * 1000}),
        (log, {"start": 0, "blocks": [line], "end": {"count": 1, "sha256": "0" * 64}}),
        (log, {"start": random.choice((-1, 2**63, 2**70)), "blocks": [line] * 2000}),
        ("/agent/v1/usage", {"agent_id": "liar", "samples": [sample] * 100}),
        ("/agent/v1/runs/%2e%2e/replicas/..%2f..%2fx/logs", {"start": 0, "blocks": [line]}),
    ]


KINDS: dict[str, Callable[[Attacker], None]] = {
    function.__name__: function for function in (half_open, guesses, bodies, uploads, event_streams, lying_agents)
}


@contextmanager
def attacking(port: int, run_id: str, *kinds: str, threads: int = 3) -> Iterator[set[int]]:
    """Attacks of these kinds at once, each by several threads, until the block ends. The statuses of all answers."""
    stop = threading.Event()
    statuses: set[int] = set()

    def attack(kind: str, seed: int) -> None:
        attacker = Attacker(port, run_id, seed, statuses)
        try:
            while not stop.is_set():
                KINDS[kind](attacker)
                stop.wait(0.002)  # where nobody listens, too
        finally:
            attacker.close()

    with ThreadPoolExecutor(threads * len(kinds)) as pool:
        running = [pool.submit(attack, kind, number) for kind in kinds for number in range(threads)]
        try:
            yield statuses
        finally:
            stop.set()
        for one in running:
            one.result()


def archives() -> list[bytes]:
    """Archives with members that lead elsewhere, are links, lie about their size, or are none."""
    found = []
    for name in ("../../outside", "/tmp/outside", "a/../../outside", "x" * 5000, "\udcff", "."):
        file = io.BytesIO()
        with tarfile.open(fileobj=file, mode="w:gz") as tar:
            member = tarfile.TarInfo(name)
            member.size = 10
            tar.addfile(member, io.BytesIO(b"0123456789"))
            link = tarfile.TarInfo("link")
            link.type, link.linkname = tarfile.SYMTYPE, "/etc"
            tar.addfile(link)
        found += [file.getvalue(), file.getvalue()[:-20]]
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w") as archive:
            archive.writestr(name.encode("utf-8", "replace").decode(), b"0" * 1000)
        found += [file.getvalue(), file.getvalue()[10:]]
    return found
