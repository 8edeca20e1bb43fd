"""The OpenAPI description: it has every route of the API, and of each what is sent and what comes back."""

import json
import re
from typing import Any

from integration.api.api_support import Server
from trainyard_server.app import ACCESS
from trainyard_server.domain.access.route_access import MLFLOW_AREAS, SOCKET, Access, is_described

STANDARDS = {"/openapi.json", "/$discovery/rest", "/discovery/v1/apis/{api}/{version}/rest"}
"""Answers whose form is a standard's."""

WITHOUT_BODY = {
    "/trainyard/v1/projects/{project}/channels/{name}:test",
    "/trainyard/v1/backups",
    "/trainyard/v1/quotas:reload",
    "/trainyard/v1/agents/{agent}:evict",
    "/trainyard/v1/google-keys",
    "/trainyard/v1/sign-in-codes",
}
VAGUE: tuple[Any, ...] = ({}, {"type": "object"}, None)


def _operations(document: dict[str, Any]) -> dict[tuple[str, str], dict[str, Any]]:
    return {
        (method.upper(), path): operation
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    }


def _vague(answer: dict[str, Any]) -> bool:
    """Whether the answer may be anything."""
    schemas = [content.get("schema", {}) for content in answer["content"].values()]
    plain = [{key: value for key, value in schema.items() if key != "title"} for schema in schemas]
    return any(schema in VAGUE or schema.get("additionalProperties") is True for schema in plain)


def test_description_is_fastapis_own_and_has_every_route_with_its_body_and_answer(api: Server) -> None:
    answer = api.client.get("/openapi.json")  # without a token
    assert answer.status_code == 200
    document = answer.json()
    assert document == json.loads(json.dumps(api.app.openapi()))
    operations = _operations(document)
    described = [row for row in ACCESS.rows if is_described(row.path) and row.method != SOCKET]
    rows = {(row.method, row.path.replace(":path}", "}")): row for row in described}
    assert operations.keys() == rows.keys()
    wrong = []
    for (method, path), row in rows.items():
        operation = operations[method, path]
        if operation["summary"].lower() != row.what.lower() or not operation["tags"]:
            wrong.append(f"{method} {path} has another summary, or no tag")
        if (row.access is Access.NOBODY) == ("security" in operation):
            wrong.append(f"{method} {path} is open, or is not")
        form = "MlflowError" if path.startswith(MLFLOW_AREAS) else "ErrorAnswer"
        error = operation["responses"]["default"]["content"]["application/json"]["schema"]
        if error != {"$ref": f"#/components/schemas/{form}"}:
            wrong.append(f"{method} {path} has no form of errors")
        named = {part["name"] for part in operation.get("parameters", ()) if part["in"] == "path"}
        if named != set(re.findall(r"\{(\w+)", path)):
            wrong.append(f"{method} {path} does not declare the parameters of its path")
        if path.startswith("/v1/"):
            continue  # the discovery document has its messages
        if path not in STANDARDS and _vague(operation["responses"]["200"]):
            wrong.append(f"{method} {path} answers with anything: give the route a model (docs: add-a-capability.md)")
        sends = method in ("POST", "PUT", "PATCH")
        if sends and path not in WITHOUT_BODY and "requestBody" not in operation:
            wrong.append(f"{method} {path} has no body: declare it as a parameter, a model")
    assert not wrong, "\n".join(wrong)
