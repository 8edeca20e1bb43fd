"""Schemathesis against a real service of its own, by both descriptions of the API: `/openapi.json`, and the discovery
document as OpenAPI.

    PYTHONPATH=tests:trainer_library/tests .venv/bin/python -m attacks.schema_fuzzing --minutes 10 --seed 1

Every check is made but three. Requests are read leniently where Google's service did, and many rules (a job needs
machines that exist) are none of JSON Schema: neither does a body that fits mean that it is accepted, nor the opposite.
Who makes thousands of calls with wrong tokens is slowed down (429); `test_access_table.py` tries them on every route.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attacks.live_service import LiveService, live_service
from beds.token_files import long_token
from trainyard_protocol.wire.agents import AGENT_KEY

LEFT_OUT = ("negative_data_rejection", "positive_data_acceptance", "ignored_auth")
OF_METHODS = ("unsupported_method", "allow_header_conformance")
"""Not for the discovery document, which has no methods that are refused."""

ALL_PHASES = "examples,coverage,fuzzing,stateful"
KNOWN = {
    "project": "p",
    "projectsId": "p",
    "job_id": "job",
    "jobsId": "job",
    "task": "master-replica-0",
    "location": "us-central1",
}
"""Values of parameters of paths that lead to something; half of the calls have them, except those that delete."""

TRAINING_INPUT = {"scaleTier": "CUSTOM", "masterType": "local-1", "pythonModule": "counting"}
EXAMPLES: Mapping[str, Any] = {
    "/v1/projects/{project}/jobs": {"jobId": "an_example", "trainingInput": TRAINING_INPUT},
    "/v1/projects/{projectsId}/jobs": {"jobId": "another", "trainingInput": TRAINING_INPUT},
    "/v2/entries:list": {"resourceNames": ["projects/p"], "filter": 'resource.labels.job_id="job"'},
    "/trainyard/v1/projects/{project}/configs:check": {"config": "trainingInput: {scaleTier: BASIC}"},
}
"""Bodies of POST that are accepted, beside generated ones, which rarely are."""


@dataclass(frozen=True)
class Fuzzing:
    """One run of Schemathesis: a description, and who calls."""

    name: str
    description: Mapping[str, Any]
    headers: Mapping[str, str]
    share: float
    """Of the time."""
    left_out: tuple[str, ...] = LEFT_OUT


@contextmanager
def fuzzed_service(root: Path) -> Iterator[LiveService]:
    """A service with a job that has ended, so that following its log comes to an end."""
    with live_service(root, "--requests-per-second", "0") as service:
        service.begin()
        service.finish()
        yield service


def bearer(role: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {long_token(role)}"}


def fuzzings(service: LiveService) -> list[Fuzzing]:
    ours = service.get("/openapi.json")
    agents = {path: one for path, one in ours["paths"].items() if path.startswith("/agent/")}
    others = {path: one for path, one in ours["paths"].items() if path not in agents}
    google = from_discovery(service.get("/$discovery/rest?version=v1"))
    return [
        Fuzzing("people", _led({**ours, "paths": others}), bearer("admin"), 0.6),
        Fuzzing("agents", _led({**ours, "paths": agents}), {**bearer("agent"), AGENT_KEY: "ab" * 32}, 0.2),
        Fuzzing("discovery", _led(google), bearer("admin"), 0.2, (*LEFT_OUT, *OF_METHODS)),
    ]


def from_discovery(document: Mapping[str, Any]) -> dict[str, Any]:
    """The discovery document as OpenAPI. Errors are left to the other description."""
    paths: dict[str, Any] = {}
    for method in _methods(document):
        named = re.findall(r"\{(\w+)\}", method["flatPath"])
        parameters = [{"name": n, "in": "path", "required": True, "schema": {"type": "string"}} for n in named]
        for name, one in {**document["parameters"], **method["parameters"]}.items():
            if one["location"] == "query":
                parameters.append({"name": name, "in": "query", "schema": _json_schema(one)})
        answer = {"description": "", "content": {"application/json": {"schema": _json_schema(method["response"])}}}
        operation = {
            "operationId": method["id"],
            "parameters": parameters,
            "responses": {"200": answer, "4XX": {"description": ""}},
        }
        if "request" in method:
            operation["requestBody"] = {"content": {"application/json": {"schema": _json_schema(method["request"])}}}
        paths.setdefault(f"/{method['flatPath']}", {})[method["httpMethod"].lower()] = operation
    schemas = {name: _json_schema(schema) for name, schema in document["schemas"].items()}
    return {
        "openapi": "3.1.0",
        "info": {"title": document["id"], "version": document["revision"]},
        "paths": paths,
        "components": {"schemas": schemas},
    }


def _methods(group: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield from group.get("methods", {}).values()
    for inner in group.get("resources", {}).values():
        yield from _methods(inner)


def _json_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    if "$ref" in schema:
        return {"$ref": f"#/components/schemas/{schema['$ref']}"}
    if schema["type"] == "any":
        return {}
    found: dict[str, Any] = {key: schema[key] for key in ("type", "format", "enum") if key in schema}
    if "items" in schema:
        found["items"] = _json_schema(schema["items"])
    if "properties" in schema:
        found["properties"] = {name: _json_schema(one) for name, one in schema["properties"].items()}
    if "additionalProperties" in schema:
        found["additionalProperties"] = _json_schema(schema["additionalProperties"])
    return found


def _led(description: dict[str, Any]) -> dict[str, Any]:
    """The description, with values of paths and bodies that lead to something."""
    led: dict[str, Any] = json.loads(json.dumps(description))
    for path, example in EXAMPLES.items():
        if path in led["paths"]:
            led["paths"][path]["post"]["requestBody"]["content"]["application/json"]["example"] = example
    for methods in led["paths"].values():
        for method, operation in methods.items():
            for one in operation.get("parameters", ()):
                if one.get("in") == "path" and one["name"] in KNOWN and method != "delete":
                    one["schema"] = {"anyOf": [{"const": KNOWN[one["name"]]}, one["schema"]]}
    return led


def fuzz(service: LiveService, fuzzing: Fuzzing, seed: int, *options: str) -> subprocess.CompletedProcess[str]:
    path = service.root / f"{fuzzing.name}.json"
    path.write_text(json.dumps(fuzzing.description))
    command = [sys.executable, "-m", "schemathesis.cli", "run", str(path), "--url", str(service.url)]
    command += ["--seed", str(seed), "--exclude-checks", ",".join(fuzzing.left_out), "--continue-on-failure"]
    command += ["--warnings", "off", "--request-timeout", "60", *options]
    for name, value in fuzzing.headers.items():
        command += ["--header", f"{name}: {value}"]
    environment = {**os.environ, "NO_COLOR": "1", "COLUMNS": "160"}
    return subprocess.run(command, cwd=service.root, capture_output=True, text=True, check=False, env=environment)


def traceback(service: LiveService) -> str:
    """The first traceback in the server's log, with what follows it."""
    return "".join(service.programs.log_of("server").partition("Traceback")[1:])[:20_000]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="people, agents or discovery")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory, fuzzed_service(Path(directory)) as service:
        chosen = [one for one in fuzzings(service) if given.only in one.name]
        failed = []
        for one in chosen:
            seconds = max(int(given.minutes * 60 * one.share / sum(each.share for each in chosen)), 1)
            done = fuzz(service, one, given.seed, "--phases", ALL_PHASES, "--max-time", str(seconds))
            print(f"== {one.name}, seed {given.seed}\n{done.stdout[:30000]}{done.stderr[-5000:]}", flush=True)
            failed += [one.name] * bool(done.returncode)
        if trace := traceback(service):
            print(trace)
            failed.append("the server's log")
    sys.exit(f"Failed: {', '.join(failed)}" if failed else 0)


if __name__ == "__main__":
    main()
