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


@pytest.mark.parametrize("kind", ["application/json", "application/x-www-form-urlencoded", ""])
def test_body_is_json_whatever_its_type_says_and_an_empty_one_has_no_fields(api: Server, kind: str) -> None:
    headers = {**VERA, "Content-Type": kind} if kind else VERA
    checked = api.client.post("/trainyard/v1/projects/p/configs:check", content=b'{"config": 1}', headers=headers)
    violation = checked.json()["error"]["details"][0]["fieldViolations"][0]
    assert (checked.status_code, violation) == (
        400,
        {"field": "config", "description": "Input should be a valid string"},
    )
    found = api.client.post("/v2/entries:list", content=b"", headers=headers)
    assert "resource_names" in found.json()["error"]["message"]
    broken = api.client.post("/v2/entries:list", content=b"{", headers=headers)
    assert broken.json()["error"]["message"].startswith("Invalid JSON payload received.")
