"""Hundreds of inputs of each kind, made from a seed: no answer of the server is an error of its own or takes long, it
keeps its memory and its files, and whatever reads a config or an archive refuses it by its own error."""

import gzip
import json
import random
import socket
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from attacks.attackers import TIMEOUT_S, archives, lies, request
from attacks.live_service import LiveService, live_service
from beds.token_files import long_token
from trainyard_agent.staging import archive_check
from trainyard_protocol.errors import InvalidArgument, to_body
from trainyard_protocol.job.config.text import NotReadable, read
from trainyard_protocol.job.config.validation import checked_job
from trainyard_protocol.job.machines import load_catalog

pytestmark = pytest.mark.long
NUMBER = 200
"""Of inputs of each kind."""

GROWTH_MB = 200
CONFIG = """\
trainingInput:
  scaleTier: CUSTOM
  masterType: local-1
  pythonModule: &a trainer.task
  args: [--epochs, "5", *a]
  labels: {team: 'vision', '7': "\\x41"}
  scheduling: {maxRunningTime: 3600s}
"""
YAML: tuple[str, ...] = (
    "\0",
    "\ufeff",
    "[",
    "{",
    "&a ",
    "*a ",
    "!!int ",
    "!!binary ",
    "!<x> ",
    "? ",
    "- ",
    ": ",
    "|\n",
    "%YAML 9.9\n",
    "--- ",
)
YAML += ("\t", "'", '"\\U00110000"', "0x_", "2026-13-45", "<<: ", "9" * 5000, "\u2028", "\x85", ".nan", "=", "[" * 500)


def raw_requests(draw: random.Random) -> bytes:
    """Requests that break the rules of HTTP here and there."""
    admin = f"Authorization: Bearer {long_token('admin')}"
    target = draw.choice(
        (
            "/",
            "*",
            "",
            "//",
            "/%",
            "/%zz",
            "/\xff",
            "/..%2f",
            "/a\\b",
            "http://x:y/",
            "/?" + "a=1&" * 2000,
            "/" + "a" * 70_000,
        )
    )
    start = draw.choice(("GET", "get", "G\0T", "", "TRACE", "CONNECT", "PRI", "POST", "X" * 5000)) + f" {target} "
    start += draw.choice(("HTTP/1.1", "HTTP/1.0", "HTTP/9.9", "HTTP/2.0", "", "FTP/1.1", "HTTP/1.1\0"))
    headers = draw.choices(
        (
            "Host: localhost",
            "Host: localhost\r\nHost: other",
            "Content-Length: 5\r\nContent-Length: 6",
            "Content-Length: 5\r\nTransfer-Encoding: chunked",
            "Transfer-Encoding: chunked, chunked",
            "Transfer-Encoding: \x0bchunked",
            "Content-Length: +5",
            "Expect: 100-continue",
            "Upgrade: websocket\r\nConnection: Upgrade",
            "Upgrade: h2c",
            "X-A: b\r\n folded",
            "X A: b",
            ": b",
            "X-A: \0\x7f",
            "X-" + "a" * 9000 + ": b",
            "Cookie: " + "a=b;" * 3000,
            "Connection: close, keep-alive",
            "Range: bytes=0-,1-",
            admin,
        ),
        k=draw.randrange(8),
    )
    body = draw.choice(
        ("", "hello", "5\r\nhello\r\n0\r\n\r\n", "ffffffffffffffffff\r\n", "-1\r\n", "GET / HTTP/1.1\r\n\r\n" * 50)
    )
    end = draw.choice(("\r\n", "\n", "\r"))
    return end.join([start, *headers, "", body]).encode("latin-1", "replace")


def configs(draw: random.Random) -> str:
    """The config with a few hostile pieces in it, or without some of its own."""
    text = CONFIG
    for _ in range(draw.randrange(1, 6)):
        at = draw.randrange(len(text))
        text = text[:at] + draw.choice((*YAML, "")) + text[at + draw.randrange(3) :]
    return text


def config_checks(draw: random.Random) -> bytes:
    return request(
        "POST", "/trainyard/v1/projects/p/configs:check", json.dumps({"config": configs(draw)}).encode(), "submitter"
    )


def uploads(draw: random.Random) -> bytes:
    name = draw.choice(
        ("a.tar.gz", "..%2fa.zip", "%00.whl", "a%0d%0ab.zip", "%2e%2e%2f%2e%2e%2fx.whl", "x" * 300 + ".zip")
    )
    project = draw.choice(("p", "..", "%2e%2e", "p%2f..%2f..", "%00", "p" * 5000))
    return request("POST", f"/upload/trainyard/v1/projects/{project}/packages/{name}", damaged(draw), "admin")


def reports(draw: random.Random) -> bytes:
    """Reports of agents that lie."""
    path, message = draw.choice(lies(draw.choice(("0" * 32, "..", "\u0000")), draw))
    key = draw.choice(("X-Trainyard-Agent-Key: " + "a" * 64, "X-Trainyard-Agent-Key: \xff", "X: y"))
    return request("POST", path.replace("\0", "%00"), json.dumps(message).encode(), "agent", key)


KINDS: tuple[Callable[[random.Random], bytes], ...] = (raw_requests, config_checks, uploads, reports)
ARCHIVES = archives()


def damaged(draw: random.Random) -> bytes:
    """An archive that leads elsewhere, with some bytes changed, before or after it is compressed."""
    content = draw.choice(ARCHIVES)
    try:
        content = gzip.decompress(content)
    except (OSError, EOFError):
        return _changed(draw, content)
    return gzip.compress(_changed(draw, content)) if draw.random() < 0.7 else _changed(draw, gzip.compress(content))


def _changed(draw: random.Random, content: bytes) -> bytes:
    changed = bytearray(content)
    for _ in range(draw.randrange(1, 20)):
        changed[draw.randrange(len(changed))] = draw.randrange(256)
    return bytes(changed[: draw.randrange(len(changed))] if draw.random() < 0.3 else changed)


def status(port: int, data: bytes) -> int:
    """The status of the answer; 0 if the connection is closed without one. Raises TimeoutError."""
    with socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S) as connection:
        connection.settimeout(0.5)
        try:
            connection.sendall(data)
            answer = connection.recv(4096)
        except TimeoutError:  # a part of the request is missing
            connection.settimeout(TIMEOUT_S)
            connection.shutdown(socket.SHUT_WR)
            answer = connection.recv(4096)
        except ConnectionError:
            return 0
    return int(answer[9:12]) if answer.startswith(b"HTTP/1.1 ") else 0


def outcomes(service: LiveService, kind: Callable[[random.Random], bytes]) -> Iterator[int]:
    draws = [kind(random.Random(seed)) for seed in range(NUMBER)]
    with ThreadPoolExecutor(8) as pool:
        yield from pool.map(lambda data: status(service.port, data), draws)


@pytest.mark.slow
@pytest.mark.e2e
def test_no_generated_request_is_an_error_of_the_server_or_changes_what_it_keeps(tmp_path: Path) -> None:
    with live_service(tmp_path) as service:
        before, memory = service.files(), service.memory_mb()
        found = {kind.__name__: Counter(outcomes(service, kind)) for kind in KINDS}
        assert not [status for answers in found.values() for status in answers if status >= 500], found
        assert all(answers.keys() & {200, 400} for answers in found.values()), found
        assert service.memory_mb() - memory < GROWTH_MB
        assert service.files() - before <= {"data/staging/projects", "data/staging/projects/p"}
        assert service.get("/healthz")["checks"]["database"]["status"] == "ok"
        log = service.programs.log_of("server")
        assert "Traceback" not in log, log[-5000:]


def test_any_config_text_is_read_or_refused() -> None:
    catalog, refusals, readable = load_catalog(None), [], 0
    for seed in range(2 * NUMBER):
        try:
            value = read(configs(random.Random(seed))).data
            readable += 1
            checked_job({"jobId": "a", "trainingInput": value}, catalog)
        except NotReadable as error:
            refusals.append(error.text)
        except InvalidArgument as error:
            refusals.append(json.dumps(to_body(error)))
    assert all(refusals)
    assert 20 < readable < 2 * NUMBER - 20, "some of each"


def test_any_damaged_archive_is_read_or_refused(tmp_path: Path) -> None:
    answers: Counter[str] = Counter()
    package = tmp_path / "p"
    for seed in range(NUMBER):
        path = package.with_suffix(random.Random(seed).choice((".tar.gz", ".zip", ".whl")))
        path.write_bytes(damaged(random.Random(seed)))
        try:
            answers[str(archive_check.needs_isolation(path))] += 1
        except archive_check.ArchiveRefused:
            answers["refused"] += 1
        path.unlink()
    assert list(tmp_path.iterdir()) == []
    assert set(answers) <= {"True", "False", "refused"}
    assert answers["refused"] > 5
