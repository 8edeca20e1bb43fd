import json
import re
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest

from trainyard_cli import v1_client
from trainyard_cli.client import Client
from trainyard_cli.settings import Server
from trainyard_protocol.answers.people import TokenRequest
from trainyard_protocol.errors import (
    AlreadyExists,
    Internal,
    NotFound,
    ResourceExhausted,
    TrainyardError,
    Unauthenticated,
    Unavailable,
    Violation,
    to_body,
)
from trainyard_protocol.net.sockets import SocketRefused
from unit.cli.scripted_server import CUT, Answer, ScriptedServer, ok, refused

TRAINING = {"scaleTier": "BASIC", "pythonModule": "trainer.task", "workerCount": 2}
SENT = {"jobId": "j", "trainingInput": TRAINING}
ECHO = {"jobId": "j", "trainingInput": {**TRAINING, "workerCount": "2"}, "state": "QUEUED"}
EXISTS = refused(AlreadyExists(Violation("job.job_id", "A job with this id already exists.")))
BUSY = refused(Unavailable("The server is starting."))


class Waits(list[float]):
    def __call__(self, seconds: float) -> None:
        self.append(seconds)


@pytest.fixture
def waits() -> Waits:
    return Waits()


@pytest.fixture
def client(script: ScriptedServer, waits: Waits) -> Iterator[Client]:
    with Client(Server(script.url, "secret"), "my project", sleep=waits) as opened:
        yield opened


def test_every_call_carries_the_token_and_the_quoted_project(script: ScriptedServer, client: Client) -> None:
    script.answers = [ok(ECHO)]
    client.get_job("j/../k")
    (request,) = script.requests
    assert request.headers["Authorization"] == "Bearer secret"
    assert request.path == "/v1/projects/my%20project/jobs/j%2F..%2Fk"


def test_call_to_a_busy_server_is_made_again(script: ScriptedServer, client: Client, waits: Waits) -> None:
    script.answers = [BUSY, (429, "text/plain", b"slow down"), CUT, ok(ECHO)]
    assert client.get_job("j") == ECHO
    assert waits == [0.5, 1.0, 2.0]


def test_call_beyond_a_limit_is_made_again_when_the_server_says(script: ScriptedServer, waits: Waits) -> None:
    """The first wait is quiet. A submit is not taken for done: the server has refused it."""
    messages: list[str] = []
    limited = (*refused(ResourceExhausted("Too fast.")), {"Retry-After": "3"})
    with Client(Server(script.url, "t"), "p", sleep=waits, notify=messages.append) as client:
        script.answers = [limited, ok(ECHO)]
        client.get_job("j")
        assert (waits, messages) == ([3.0], [])
        script.answers = [limited, limited, EXISTS]
        with pytest.raises(AlreadyExists):
            client.create_job(SENT)
        assert (waits, messages) == ([3.0] * 3, ["Too fast. Trying again for 2 minutes; Ctrl-C ends it."])
        script.answers = [refused(ResourceExhausted("The queue is full."))]
        with pytest.raises(ResourceExhausted, match="The queue is full"):
            client.create_job(SENT)
        assert len(waits) == 3
        guessed = refused(ResourceExhausted("Not a token. Too many wrong ones."))
        script.answers = [(*guessed, {"Retry-After": "3", "WWW-Authenticate": "Bearer"})]
        with pytest.raises(Unauthenticated, match="Not a token"):
            client.get_job("j")
        assert len(waits) == 3, "a wrong token does not become right"


def test_call_to_a_server_elsewhere_is_tried_for_two_minutes_with_a_word_every_ten_seconds(
    script: ScriptedServer, waits: Waits, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(v1_client, "time", Mock(monotonic=lambda: 0.0))  # no time but that of the pauses
    messages: list[str] = []
    with Client(Server(script.url, "t"), "p", sleep=waits, notify=messages.append) as client:
        script.answers = [*[CUT] * 20, EXISTS, ok(ECHO)]
        assert client.create_job(SENT) == ECHO, "the job that a lost answer had accepted"
        assert waits == [0.5, 1.0, 2.0, 4.0, *[5.0] * 16]
        away = f"The server at {script.url} does not answer."
        assert messages[:2] == [
            f"{away} Trying again for 2 minutes; Ctrl-C ends it.",
            f"{away} Still trying after 12 s...",
        ]
        assert len(messages) == 9
        waits.clear()
        script.answers = [CUT] * 100
        with pytest.raises(Unavailable, match="the connection was cut"):
            client.get_job("j")
        assert 115 <= sum(waits) <= 120
        waits.clear()
        script.answers = [CUT] * 100
        with pytest.raises(Unavailable, match="the connection was cut"):
            client.create_token(TokenRequest(owner="ada"))
        assert waits == [], "a second attempt could make a second token"


def test_call_to_a_server_that_stands_still_says_so_and_ends_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """It accepts connections and does not answer."""
    monkeypatch.setattr(v1_client, "_REPORT_S", 0.05)
    messages: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as still:
        url = f"http://127.0.0.1:{still.getsockname()[1]}"

        def answer_after_three_words() -> None:
            connection, _ = still.accept()
            while len(messages) < 3:
                time.sleep(0.01)
            body = json.dumps(ECHO)
            connection.sendall(f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
            connection.close()

        thread = threading.Thread(target=answer_after_three_words)
        thread.start()
        with Client(Server(url, "t"), "p", notify=messages.append) as client:
            assert client.get_job("j") == ECHO
        thread.join()
    word = rf"The server at {url} does not answer\. Still waiting after \d+ s; Ctrl-C ends it\."
    assert len(messages) >= 3
    assert all(re.fullmatch(word, message) for message in messages), messages
    tries = v1_client._Tries(None)
    assert tries.bounded(v1_client.TIMEOUT).read == 60.0
    tries.slept_s = 100.0
    assert tries.bounded(v1_client.TIMEOUT).read == 20.0
    tries.slept_s = 119.9
    assert tries.pause(at_home=False) is None


def test_answer_of_another_server_is_reported(script: ScriptedServer, client: Client) -> None:
    foreign: tuple[Answer, ...] = ((200, "text/html", b"<html>"), (404, "text/html", b"<html>"), ok([1]))
    for answer in foreign:
        script.answers = [answer]
        with pytest.raises(Internal, match=r"is not a Trainyard server|not a JSON object"):
            client.get_job("j")
    script.answers = [ok({"hello": "world"})]
    with pytest.raises(Internal, match="is not a Trainyard server"):
        client.status()


def test_create_whose_answer_was_lost_returns_the_same_job_and_no_other(script: ScriptedServer, client: Client) -> None:
    script.answers = [CUT, EXISTS, ok(ECHO)]
    assert client.create_job(SENT) == ECHO
    assert [request.method for request in script.requests] == ["POST", "POST", "GET"]
    script.answers = [CUT, EXISTS, ok({**ECHO, "trainingInput": {"scaleTier": "BASIC"}})]
    with pytest.raises(AlreadyExists):
        client.create_job(SENT)
    script.requests.clear()
    script.answers = [EXISTS, ok(ECHO)]
    with pytest.raises(AlreadyExists):
        client.create_job(SENT)
    assert len(script.requests) == 1, "no answer was lost"


def test_list_jobs_reads_page_after_page_up_to_the_limit(script: ScriptedServer, client: Client) -> None:
    first = [{"jobId": f"a{n}"} for n in range(100)]
    script.answers = [ok({"jobs": first, "nextPageToken": "t/2"}), ok({"jobs": [{"jobId": "b"}]})]
    found = list(client.list_jobs("state:FAILED", limit=101))
    assert [job["jobId"] for job in found][-2:] == ["a99", "b"]
    assert "pageSize=100" in script.requests[0].path
    assert "filter=state%3AFAILED" in script.requests[0].path
    assert "pageSize=1&pageToken=t%2F2" in script.requests[1].path


def test_upload_that_was_cut_sends_the_whole_file_again(script: ScriptedServer, client: Client, tmp_path: Path) -> None:
    content = bytes(range(256)) * 9000
    (tmp_path / "trainer-0.0.0.tar.gz").write_bytes(content)
    script.answers = [BUSY, ok({"uri": "staging://x/trainer-0.0.0.tar.gz", "sha256": "x", "size": 1})]
    address = client.upload(tmp_path / "trainer-0.0.0.tar.gz")
    assert address == "staging://x/trainer-0.0.0.tar.gz"
    assert [request.body for request in script.requests] == [content, content]
    assert script.requests[0].path == "/upload/trainyard/v1/projects/my%20project/packages/trainer-0.0.0.tar.gz"


def test_socket_that_is_not_opened_says_who_answers(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    url, refusal = client.server.url, json.dumps(to_body(NotFound("It has ended.")))
    proxys = f"The server at {url} opens no WebSocket (HTTP). A proxy in front of it must pass them on."
    table: dict[str, tuple[SocketRefused, TrainyardError]] = {
        "nobody": (SocketRefused("Connection refused"),
         Unavailable(f"The server at {url} does not answer: Connection refused.")),
        "restarting": (SocketRefused("HTTP", 502, b"<html>"),
         Unavailable(f"The server at {url} does not answer: the proxy in front of it says 502.")),
        "a proxy": (SocketRefused("HTTP", 200, b"<html>"), Unavailable(proxys)),
        "the server": (SocketRefused("HTTP", 404, refusal.encode()), NotFound("It has ended.")),
    }  # fmt: skip
    messages = {}
    for name, (failure, _) in table.items():
        monkeypatch.setattr("trainyard_protocol.net.sockets.open_socket", Mock(side_effect=failure))
        with pytest.raises(TrainyardError) as caught:
            client.open_stream("id", 0)
        messages[name] = type(caught.value), caught.value.message
    assert messages == {name: (type(expected), expected.message) for name, (_, expected) in table.items()}
