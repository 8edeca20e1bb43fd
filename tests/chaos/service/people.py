"""Those who use the service over HTTP: they ask until they are answered, and follow logs through every cut."""

import http.client
import json
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from trainyard_protocol.answers.jobs import JobDetail
from trainyard_protocol.answers.log_views import LogEntry, LogSummary

PROJECT = "chaos"
_TIMEOUT_S = 3.0
_PAUSE_S = 0.05
_EVERYTHING = 10**9


class GaveUp(Exception):
    """Asked until the history was over, and never answered."""


@dataclass(slots=True)
class Answer:
    status: int
    body: Any
    sent: float
    """When the request was first sent, by the monotonic clock."""
    attempts: int = 1


class Person:
    """Asks at `port` with the admin's token until `over` is set."""

    def __init__(self, port: int, token: str, over: threading.Event) -> None:
        self._port = port
        self._headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        self._over = over

    def ask(self, method: str, path: str, body: object = None) -> Answer:
        """The first answer that arrives from a server without a failure. Raises GaveUp."""
        sent, attempts = time.monotonic(), 0
        while True:
            attempts += 1
            try:
                status, text = self._once(method, path, body)
                if status < 500:
                    return Answer(status, json.loads(text), sent, attempts)
                failure = f"{status} {text!r}"
            except (OSError, http.client.HTTPException, ValueError) as error:
                failure = repr(error)
            if self._over.wait(_PAUSE_S):
                raise GaveUp(f"{method} {path} after {attempts} attempts: {failure}")

    def submit(self, name: str, training_input: dict[str, Any]) -> Answer:
        return self.ask("POST", f"/v1/projects/{PROJECT}/jobs", {"jobId": name, "trainingInput": training_input})

    def cancel(self, name: str) -> Answer:
        return self.ask("POST", f"/v1/projects/{PROJECT}/jobs/{name}:cancel", {})

    def jobs(self) -> list[str]:
        return [job["jobId"] for job in self.ask("GET", f"/v1/projects/{PROJECT}/jobs").body.get("jobs", [])]

    def detail(self, name: str) -> JobDetail:
        answer = self.ask("GET", f"/trainyard/v1/projects/{PROJECT}/jobs/{name}")
        assert answer.status == 200, answer
        return JobDetail.model_validate(answer.body)

    def log(self, name: str) -> "Log":
        """All that the server has of it now."""
        log = Log()
        while log.summary is None:
            self._read(name, log, False, _EVERYTHING)
            if self._over.is_set() and log.summary is None:
                raise GaveUp(f"the log of {name}")
        return log

    def follow(self, name: str, log: "Log", random_: random.Random) -> None:
        """Until its end has come, or everything is over. Now and then it hangs up in the middle, and resumes."""
        while log.summary is None and not self._over.is_set():
            self._read(name, log, True, random_.choice([1, 4, 50, _EVERYTHING]))

    def _read(self, name: str, log: "Log", follow: bool, most: int) -> None:
        path = f"/trainyard/v1/projects/{PROJECT}/jobs/{name}/logs?follow={str(follow).lower()}"
        headers = {**self._headers, **({"Last-Event-ID": str(log.cursor)} if log.cursor else {})}
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=_TIMEOUT_S)
        try:
            connection.request("GET", path, headers=headers)
            answer = connection.getresponse()
            if answer.status == 200:
                log.read(answer.readline, most)
        except (OSError, http.client.HTTPException):
            pass  # cut: it is resumed
        finally:
            connection.close()
        log.cuts += 1
        self._over.wait(_PAUSE_S)

    def _once(self, method: str, path: str, body: object) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=_TIMEOUT_S)
        try:
            text = None if body is None else json.dumps(body)
            connection.request(method, path, text, self._headers)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()


@dataclass(slots=True)
class Log:
    """The log of one job, as far as it came."""

    entries: list[LogEntry] = field(default_factory=list)
    summary: LogSummary | None = None
    cuts: int = 0

    @property
    def cursor(self) -> int:
        return self.entries[-1].cursor if self.entries else 0

    def read(self, readline: Callable[[], bytes], most: int) -> None:
        """Server-sent events until the stream ends, or so many lines came. An event that breaks off in the middle was
        not sent."""
        kind, data = "", ""
        enough = len(self.entries) + most
        while len(self.entries) < enough and (text := readline().decode()):
            if not text.endswith("\n"):
                return
            name, _, value = text.rstrip("\r\n").partition(": ")
            match name:
                case "event":
                    kind = value
                case "data":
                    data += value
                case "":
                    if kind == "log":
                        self.entries.append(LogEntry.model_validate_json(data))
                    elif kind == "end":
                        self.summary = LogSummary.model_validate_json(data)
                    kind, data = "", ""
