"""A body is refused while it is read, as soon as it exceeds the limit of its route."""

import json
from collections.abc import MutableMapping
from typing import Any

import pytest

from integration.api.api_support import AGENT, ALICE, VERA, Server

PART = b" " * 2**18
LIMITS = {
    "/trainyard/v1/projects/p/configs:check": 2**20,  # a route with a model
    "/v1/projects/p/jobs": 2**20,  # one with plain JSON
    "/batch": 4 * 2**20,  # one that reads bytes
    "/agent/v1/usage": 4 * 2**20,  # one with a limit of its own
}


@pytest.mark.parametrize(("path", "limit"), LIMITS.items())
async def test_body_is_read_no_further_than_its_limit(api: Server, path: str, limit: int) -> None:
    read = 0
    sent: list[MutableMapping[str, Any]] = []

    async def endless() -> MutableMapping[str, Any]:
        nonlocal read
        read += len(PART)
        return {"type": "http.request", "body": PART, "more_body": True}

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    await api.app(_scope(path, AGENT if path.startswith("/agent/") else ALICE), endless, send)
    answer = json.loads(b"".join(message.get("body", b"") for message in sent))
    assert (sent[0]["status"], read) == (413, limit + len(PART))
    assert answer["error"]["message"] == f"The request's body is larger than the limit of {limit} bytes."


def _scope(path: str, headers: dict[str, str]) -> dict[str, Any]:
    return {
        "type": "http",
        "method": "POST",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": [
            (name.lower().encode(), value.encode()) for name, value in {"Host": "localhost", **headers}.items()
        ],
        "scheme": "http",
        "server": ("localhost", 80),
        "client": ("127.0.0.1", 1),
    }


def test_body_is_json_whatever_its_type_says_and_an_empty_one_has_no_fields(api: Server) -> None:
    for kind in ("application/json", "application/x-www-form-urlencoded", ""):
        who = {**VERA, "Content-Type": kind} if kind else VERA
        checked = api.refusal("POST", "/trainyard/v1/projects/p/configs:check", 400, who=who, content=b'{"config": 1}')
        violation = checked["details"][0]["fieldViolations"][0]
        assert violation == {"field": "config", "description": "Input should be a valid string"}
        assert "resource_names" in api.refusal("POST", "/v2/entries:list", 400, who=who, content=b"")["message"]
        broken = api.refusal("POST", "/v2/entries:list", 400, who=who, content=b"{")["message"]
        assert broken.startswith("Invalid JSON payload received.")
