"""Isolation of projects: whoever has no role in one cannot tell from any answer that it exists.

Two projects have jobs in every state. All that belongs to one of them has its word in its name.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from string import Template
from typing import Any

import httpx
import pytest
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute

from integration.api.api_support import (
    ADMIN,
    T4,
    Clock,
    ScriptedAgent,
    Server,
    custom_job,
    of_custom_job,
    of_tuning_job,
    server,
    serving,
    tuning_job,
)
from trainyard_protocol.answers.usage import GpuUsage
from trainyard_protocol.wire.sync import RunOrder
from trainyard_server.app import ACCESS, ROUTERS
from trainyard_server.domain.access.route_access import SOCKET, Access, Route

WORDS = ("narwhal", "leopard")
GHOST = "unicorn"
"""The word of what does not exist; all words have the same length."""

PEOPLE = {
    "narwhal-viewer": ("narwhal", "viewer"),
    "narwhal-owner": ("narwhal", "submitter"),
    "leopard-viewer": ("leopard", "viewer"),
    "leopard-owner": ("leopard", "submitter"),
    "leopard-admin": ("leopard", "admin"),
    "nobody": (GHOST, ""),
}
"""The word of each person's project, and its role there."""

STATES = ("running", "queued", "failed", "study.1")

READERS = ("narwhal-viewer", "leopard-admin", "nobody")

_JOB = "/projects/{project}/jobs/{job_id}"
_MORE = "/trainyard/v1"
_MLFLOW = "/api/2.0/mlflow"
NOT_BUILT = 501
"""The answer to what MLflow has and this service has not."""

_SUBMIT = '{"jobId": "$job_id", "trainingInput": {"scaleTier": "CUSTOM", "masterType": "local-1", '
_V1 = "/v1/projects/{project}"
_CUSTOM_JOBS = f"{_V1}/locations/{{location}}/customJobs"
_TUNING_JOBS = f"{_V1}/locations/{{location}}/hyperparameterTuningJobs"
_CONFIG = '{"config": "trainingInput: {pythonModule: a.b, scaleTier: BASIC}", "job_id": "$job_id"'

_OF_RUN = (
    '{"run_id": "job-1", "source_run_id": "job-1", "experiment_ids": ["1"], "run_name": "$word", "name": "$project", '
    '"key": "a", "value": "1", "model_json": "{}", "tags": [{"key": "a", "value": "b"}], "params": []}'
)
_CLOSED = (Access.OPERATOR, Access.AGENT)

CALLS: Mapping[str, Sequence[str]] = {
    "GET /sign-in": ("", "?next=/projects/$project/jobs/$job_id"),
    "GET /sign-in/oidc": ("", "?next=/projects/$project/jobs/$job_id"),
    "GET /sign-in/oidc/callback": ("?state=$word",),
    "GET /$discovery/rest": ("",),
    "GET /": (
        "",
        "?q=$word",
        "?project=$project",
        "?owner=$name",
        "?project=$project&owner=$name",
        "?label=$word-label",
        "?state=RUNNING&sort=owner",
        "?trouble=1",
        "?page=2",
    ),
    f"GET {_JOB}/logs": ("", "?q=$word"),
    f"GET {_JOB}/metrics": ("", "?with=$project/$job_id"),
    f"GET {_JOB}/config": ("",),
    f"GET {_JOB}/files": ("", "?path=$word"),
    f"GET {_JOB}/files/view": ("?path=$word.txt",),
    "GET /cluster": ("", "?page=2"),
    "GET /audit": ("", "?project=$project", "?actor=$name"),
    "GET /new": ("", "?project=$project", "?from=$project/$job_id", "?from=$job_id"),
    "POST /token": ("", "grant_type=urn:ietf:params:oauth:grant-type:jwt-bearer&assertion=$word"),
    "POST /v2/entries:list": ('{"resourceNames": ["projects/$project"], "filter": "resource.labels.job_id=$job_id"}',),
    f"GET {_CUSTOM_JOBS}": ("", "?pageSize=1", "?filter=displayName:*", "?filter=name=$job_id"),
    f"GET {_TUNING_JOBS}": ("", "?pageSize=1", "?filter=displayName:*", "?filter=name=$job_id"),
    f"POST {_TUNING_JOBS}": ('{"displayName": "$word", "studySpec": {}, "trialJobSpec": {"workerPoolSpecs": [{}]}}',),
    f"POST {_CUSTOM_JOBS}": ('{"displayName": "$word", "jobSpec": {"workerPoolSpecs": [{}]}}',),
    "GET /v1/projects/{project}/jobs": ("", "?pageSize=1", "?filter=owner:*", "?filter=jobId=$job_id"),
    "POST /v1/projects/{project}/jobs": (
        f'?validateOnly=true {_SUBMIT} "pythonModule": "a.b"}}}}',
        f'?validateOnly=true {_SUBMIT} "pythonModule": "a.b", "packageUris": ["$package"]}}}}',
        f'?validateOnly=true {_SUBMIT} "masterConfig": {{"imageUri": "gcr.io/$word/$word-image"}}}}}}',
        f'?validateOnly=true {_SUBMIT} "pythonModule": "a.b", "jobDir": "/$project/$name"}}}}',
        f'?validateOnly=true {_SUBMIT} "pythonModule": "a.b", "secrets": [{{"name": "$secret"}}]}}}}',
    ),
    "PATCH /v1/projects/{project}/jobs/{job_id}": ('?updateMask=labels {"labels": {}}',),
    "GET /storage/v1/b": ("", "?project=$project"),
    "POST /storage/v1/b": ('{"name": "x"}', '?project=$project {"name": "x"}'),
    f"GET {_MORE}/health": ("", "?deep=true"),
    f"GET {_MORE}/tokens": ("", "?all=true"),
    f"DELETE {_MORE}/tokens/{{token_id}}": ("?recursive=true",),
    f"GET {_MORE}/views": ("", "?project=$project"),
    f"POST {_MORE}/tokens": ('{"owner": "$name"}',),
    f"PUT {_MORE}/projects/{{project}}/members/{{name}}": ('{"role": "viewer"}',),
    f"PUT {_MORE}/projects/{{project}}/secrets/{{name}}": ('{"value": "a value"}',),
    f"PUT {_MORE}/projects/{{project}}/channels/{{name}}": ('{"address": "ana@example.com"}',),
    f"GET {_MORE}/projects/{{project}}/notifications": ("", "?job=$job_id"),
    "GET /usage": ("", "?by=user&project=$project"),
    f"GET {_MORE}/usage": ("?by=project&by=user", "?project=$project", "?by=label:$word"),
    f"GET {_MORE}/usage.csv": ("?by=user&by=project",),
    f"GET {_MORE}/audit": ("", "?project=$project", "?actor=$name", "?pageSize=1"),
    f"GET {_MORE}/jobs": ("", "?q=$word", "?q=_"),
    f"PUT {_MORE}{_JOB}/origin": ('{"rerun_of": "$job_id"}',),
    f"GET {_MLFLOW}/experiments/get-by-name": ("?experiment_name=$project",),
    f"GET {_MLFLOW}/experiments/get": ("?experiment_id=1",),
    f"GET {_MLFLOW}/runs/get": ("?run_id=job-1", "?run_id=job-2", "?run_id=job-3"),
    f"GET {_MLFLOW}/artifacts/list": ("?run_id=job-1", "?run_id=job-2&path=x"),
    "GET /api/2.0/mlflow-artifacts/artifacts": ("?path=job-1", "?path=job-2/x"),
    f"GET {_MLFLOW}/logged-models/{{model_id}}": ("?allow_deleted=true",),
    f"GET {_MLFLOW}/logged-models/{{model_id}}/artifacts/directories": ("?artifact_directory_path=x",),
    f"GET {_MLFLOW}/metrics/get-history": ("?run_id=job-1&metric_key=loss",),
    f"PUT {_MORE}{_JOB}/note": ('{"note": "x"}',),
    f"PUT {_MORE}/projects/{{project}}/views/{{name}}": ('{"query": "sort=name"}',),
    "GET /compare": ("?job=$project/$job_id&job=$project/x",),
    f"GET {_MORE}/jobs:compare": ("?job=$project/$job_id&job=$project/x",),
    f"GET {_MORE}/metrics": ("?job=$project/$job_id",),
    f"GET {_MORE}/jobs.csv": ("", "?filter=jobId:*&column=params.a"),
    f"POST {_MORE}{_JOB}/attachments": ('{"command": ["true"]}',),
    f"GET {_MORE}{_JOB}/usage": ("",),
    f"GET {_MORE}{_JOB}/explain": ("", "?run=1"),
    f"GET {_MORE}{_JOB}/trials": ("",),
    f"POST {_MORE}/projects/{{project}}/configs:check": (_CONFIG + "}", _CONFIG + ', "package_uris": ["$package"]}'),
    f"GET {_MORE}/projects/{{project}}/jobs": ("", "?filter=jobId:*"),
    f"GET {_MORE}/projects/{{project}}/jobs:suggest": ("?like=$job_id",),
    f"GET {_MORE}{_JOB}/metrics": ("",),
    f"GET {_MORE}{_JOB}/logs": ("?follow=false",),
    f"GET {_MORE}{_JOB}/logs/page": ("",),
    f"GET {_MORE}{_JOB}/logs/first": ("?what=error",),
    f"GET {_MORE}{_JOB}/logs/download": ("",),
    f"GET {_MORE}{_JOB}/files": ("",),
    f"GET {_MORE}{_JOB}/files/content": ("?path=$word.txt",),
    f"GET {_MORE}{_JOB}/files/entry": ("?path=$word.txt",),
    f"GET {_MORE}{_JOB}/files/archive": ("",),
    f"GET {_MORE}/runs/{{run_id}}/packages/{{sha256}}/{{filename}}": ("", "?signature=$word"),
    "POST /upload/trainyard/v1/projects/{project}/packages/{filename}": ("", "?jobId=$job_id the same content"),
    "POST /upload/trainyard/v1/projects/{project}/programs": ("?entry=$word no tar",),
} | {
    f"{route.method} {route.path}": (_OF_RUN,)
    for route in ACCESS.rows
    if route.path.startswith(_MLFLOW) and route.method in ("POST", "PATCH") and route.access not in _CLOSED
}
"""The calls of each route: `?QUERY BODY`, either may be missing. Without a row, that of its path alone."""

_MEASURED = ("/healthz", f"{_MORE}/health")
"""Paths whose answers have times and sizes of the server itself."""

Call = tuple[str, str, str]
"""Method, path with query, and body."""

Names = Mapping[str, str]


@dataclass
class World:
    """A server with both projects, behind a socket. `runs` and `packages` are by word, `tokens` by person."""

    api: Server
    client: httpx.Client
    runs: dict[str, RunOrder] = field(default_factory=dict)
    packages: dict[str, str] = field(default_factory=dict)
    tokens: dict[str, tuple[str, dict[str, str]]] = field(default_factory=dict)

    def ask(self, person: str, call: Call) -> tuple[int, list[tuple[str, str]], str]:
        """Status, headers and text of the answer; of a live page the first event with all its parts."""
        method, path, body = call
        headers = ADMIN if person == "operator" else self.tokens[person][1]
        with self.client.stream(method, path, content=body, headers=headers) as answer:
            text = ""
            for part in answer.iter_text():
                text += part
                if path.startswith("/live") and "event: parts" in text and text.endswith("\n\n"):
                    break
        kept = [(name, value) for name, value in answer.headers.multi_items() if name not in ("date", "x-request-id")]
        return answer.status_code, sorted(kept), text

    def owner(self, word: str) -> dict[str, str]:
        return self.tokens[f"{word}-owner"][1]

    def names(self, word: str, project: str = "", state: str = "running") -> Names:
        """The names of things of a project; of none for the ghost. `project`: the word of the one in the path."""
        run = self.runs.get(word)
        package = self.packages.get(word, f"staging://{'0' * 64}/{word}.whl")
        return {
            "project": f"{project or word}-lab",
            "job_id": f"{word}_{state}",
            "word": word,
            "name": f"{word}-owner",
            "secret": f"{word}_key",
            "package": package,
            "sha256": package.split("/")[2],
            "filename": f"{word}.whl",
            "token_id": self.tokens[f"{word}-owner"][0] if f"{word}-owner" in self.tokens else "0" * 12,
            "run_id": run.run_id if run is not None else "0" * 32,
            "task": "master-replica-0",
            "version": "1",
        }


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    directory = tmp_path_factory.mktemp("world")
    dirs = directory / "dirs"
    quotas = directory / "quotas.yaml"
    limits = (
        f"  {word}-lab: {{gpus: {gpus}, images: ['gcr.io/{word}/*']}}\n"
        for word, gpus in zip(WORDS, (1, 9), strict=True)
    )
    quotas.write_text("".join(["projects:\n", *limits]), encoding="utf-8")
    settings: dict[str, Any] = {
        "quotas": quotas,
        "job_dir_roots": (str(dirs),),
        "default_job_dir": str(dirs),
        "requests_per_s": 0,
        "event_streams": 0,
    }
    with ExitStack() as stack:
        api = stack.enter_context(server(directory / "data", Clock(), **settings))
        url = stack.enter_context(serving(api.app))
        client = stack.enter_context(httpx.Client(base_url=url, trust_env=False, timeout=20))
        made = World(api, client)
        _add_people(made)
        _add_jobs(made, dirs)
        yield made


def _add_people(world: World) -> None:
    for name, (word, role) in PEOPLE.items():
        token_id, header = world.api.token(owner=name)
        world.tokens[name] = (token_id, header)
        if role:
            assert world.api.set_role(name, role, f"{word}-lab") == 200


def _add_jobs(world: World, dirs: Path) -> None:
    """A job of each project in each state. On the one agent narwhal holds what leopard waits for."""
    api = world.api
    gpus = ("GPU-0", "GPU-1", "GPU-2")
    agent = ScriptedAgent(api, cpus=16, memory_gb=64, runs_images=True, gpus=gpus)
    agent.sync()

    def start(job_id: str) -> RunOrder:
        agent.turn()
        (run,) = [run for run in agent.runs.values() if run.job_id == job_id]
        agent.start(run)
        return run

    for word in WORDS:
        path = f"/upload/trainyard/v1/projects/{word}-lab/packages/{word}.whl"
        world.packages[word] = api.done("POST", path, world.owner(word), content=word.encode())["uri"]
        api.done("PUT", f"{_MORE}/projects/{word}-lab/secrets/{word}_key", json={"value": word})
        _submit(world, word, "succeeded")
        agent.exit(run=start(f"{word}_succeeded"))
        given = custom_job(f"{word}.task", packageUris=[], args=[f"--{word}-arg"])
        _submit(world, word, "failed", **of_custom_job(given, "", "x")["trainingInput"])
        run = start(f"{word}_failed")
        agent.log(f"ValueError: {word} is too large", run=run)
        agent.exit(run=run, code=1)
        metric, tuned = {"metricId": "loss", "goal": "MINIMIZE"}, {"parameterId": f"{word}_lr", "doubleValueSpec": {}}
        spec = {"metrics": [metric], "parameters": [tuned], "algorithm": "RANDOM_SEARCH"}
        study = tuning_job(displayName=f"{word} tuned", studySpec=spec, maxTrialCount=1, trialJobSpec=given["jobSpec"])
        _submit(world, word, "study", **of_tuning_job(study, "", "x")["trainingInput"])
        trial = start(f"{word}_study.1")
        agent.measure(trial, 0.5)
        agent.exit(run=trial)
    for word in WORDS:
        size = "n1-standard-8" if word == "narwhal" else "n1-standard-4"
        gpu = {"acceleratorConfig": {"count": 1 + WORDS.index(word), "type": T4}}
        _submit(world, word, "running", masterType=size, masterConfig=gpu, packageUris=[world.packages[word]])
        origin = f"{_MORE}/projects/{word}-lab/jobs/{word}_running/origin"
        git = {"branch": word, "diff": f"+{word}", "dirty": True}
        api.done("PUT", origin, json={"git": git})
        run = world.runs[word] = start(f"{word}_running")
        (replica,) = run.replicas
        agent.log(f"{word} says", f'{{"step": 3, "steps": 9, "{word}_loss": 0.5}}', run=run)
        agent.use(run=run, gpus=tuple(GpuUsage(id=gpu, utilization=0.5) for gpu in replica.gpus))
        files = dirs / f"{word}-lab" / f"{word}-owner" / f"{word}_running"
        files.mkdir(parents=True)
        (files / f"{word}.txt").write_text(f"{word} wrote this", encoding="utf-8")
    image: dict[str, Any] = {"imageUri": f"gcr.io/{WORDS[0]}/{WORDS[0]}-image"}
    image |= {"acceleratorConfig": {"count": 1, "type": T4}}
    first = {"masterType": "n1-standard-4", "masterConfig": image, "pythonModule": ""}
    _submit(world, WORDS[0], "queued", **first, scheduling={"priority": 9})
    _submit(world, WORDS[1], "queued", masterType="n1-standard-8")
    api.tick()
    api.use_cases.backend.progress.flush()


def _submit(world: World, word: str, state: str, **changes: Any) -> None:
    given = {"scaleTier": "CUSTOM", "masterType": "local-1", "pythonModule": f"{word}.task"}
    training_input = given | {"args": [f"--{word}-arg"]} | changes
    body = {
        "jobId": f"{word}_{state}",
        "labels": {f"{word}-label": f"{word}-value"},
        "trainingInput": {key: value for key, value in training_input.items() if value != ""},
    }
    world.api.done("POST", f"/v1/projects/{word}-lab/jobs", world.owner(word), json=body)


def calls(names: Names, routes: Sequence[Route] = ACCESS.rows) -> Iterator[Call]:
    """Every call of the routes about things with those names, and for a page without a query also the one for its
    changes."""
    for route in routes:
        path = route.path.replace("secrets/{name}", "secrets/{secret}")
        path = re.sub(r"\{(\w+)(?::path)?\}", lambda match: names.get(match[1], "x"), path)
        for template in CALLS.get(f"{route.method} {route.path}", ("",)):
            query, _, body = template.partition(" ") if template.startswith("?") else ("", "", template)
            query, body = (Template(text).substitute(names) for text in (query, body))
            yield route.method, path + query, body
            if route.has_changes and not query:
                yield route.method, f"/live{path}{query}", body


def calls_in_all_states(world: World, word: str, routes: Sequence[Route]) -> Iterator[Call]:
    """The calls of the routes about the project and each of its jobs, each call once. Live pages have what pages have,
    so those of one job are enough."""
    first, *others = (list(calls(world.names(word, state=state), routes)) for state in STATES)
    further = (call for some in others for call in some if not call[1].startswith("/live"))
    yield from dict.fromkeys((*first, *further))


READS = [route for route in ACCESS.rows if route.method == "GET"]
OTHERS = [route for route in ACCESS.rows if route.method not in ("GET", SOCKET)]


def test_every_route_with_a_query_or_a_body_has_its_calls() -> None:
    """A new route gets a row in CALLS with what could name things of another project; those for operators and agents
    alone need none. Without a row the call is that of the path."""
    calls_of_people = {f"{route.method} {route.path}" for route in ACCESS.rows if route.access not in _CLOSED}
    routes = [route for router in ROUTERS for route in router.routes if isinstance(route, APIRoute)]
    named = {
        f"{method} {route.path}" for route in routes if reads_more(route.dependant) for method in route.methods or ()
    }
    assert named & calls_of_people <= CALLS.keys() <= calls_of_people


def reads_more(dependant: Dependant) -> bool:
    """Whether a route reads a query or a body."""
    names = {field.alias for field in dependant.query_params} - {"alt"}
    return bool(names or dependant.body_params) or any(map(reads_more, dependant.dependencies))


def test_operator_sees_both_projects(world: World) -> None:
    """The words that the other tests look for are in the answers of one who may see them."""
    shown = [call for call in calls(world.names("narwhal"), READS) if not call[1].startswith("/live")]
    found = "".join(world.ask("operator", call)[2] for call in shown)
    names = {"-lab", "-owner", "-viewer", "-label", "-value", "_running", "_queued", "_failed", "_succeeded", "-image"}
    texts = {"_loss", " says", " is too large", "-arg", ".task", ".txt", ".whl", " wrote this", "_key"}
    assert {text for text in names | texts if f"narwhal{text}" not in found} == set()
    page = world.ask("operator", ("GET", "/cluster", ""))[2]
    assert [text for text in ("of other projects", "another project") if text in page] == []


@pytest.mark.parametrize("person", READERS)
def test_no_answer_has_a_word_of_another_project(world: World, person: str) -> None:
    own, _ = PEOPLE[person]
    foreign = [word for word in WORDS if word != own]
    wrong = []
    # The waiting job that is held up by another project is leopard's.
    asked = calls_in_all_states(world, own, READS) if person == "leopard-admin" else calls(world.names(own), READS)
    for call in asked:
        status, headers, text = world.ask(person, call)
        if any(word in f"{headers}{text}".lower() for word in foreign) or (status >= 500 and status != NOT_BUILT):
            wrong.append(f"{status} {call}: {text[:400]}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("person", READERS[1:])
def test_foreign_things_are_answered_as_those_that_do_not_exist(world: World, person: str) -> None:
    """Calls in narwhal's project, and in the caller's own."""
    wrong = []
    for project in ("narwhal",) if person == "nobody" else ("narwhal", "leopard"):
        there, absent = world.names("narwhal", project), world.names(GHOST, project.replace("narwhal", GHOST))
        for one, other in zip(calls(there), calls(absent), strict=True):
            if one != other and (answers := _differing(world, person, one, other, there, absent)):
                wrong.append(f"{one}: {answers}")
    assert not wrong, "\n".join(wrong)


def _differing(
    world: World, person: str, one: Call, other: Call, there: Names, absent: Names
) -> tuple[str, str] | None:
    """Both answers without the names in the calls, if they are not equal."""
    first, second = (_without(names, repr(world.ask(person, call))) for call, names in ((one, there), (other, absent)))
    return (first, second) if first != second else None


def _without(names: Names, text: str) -> str:
    for key, value in sorted(names.items(), key=lambda item: -len(item[1])):
        text = text.replace(value, f"<{key}>") if key not in ("task", "version") else text
    return text


def test_what_others_do_changes_no_answer(world: World) -> None:
    """Also no number, order or ETag that depends on them. Only sizes and times of the server itself may differ."""
    listed = [call for call in calls(world.names("leopard"), READS) if not call[1].startswith(_MEASURED)]
    before = [world.ask("leopard-viewer", call) for call in listed]
    _submit(world, "narwhal", "later", masterType="n1-standard-16")
    world.api.tick()
    owner, job = world.owner("narwhal"), "/v1/projects/narwhal-lab/jobs/narwhal_queued"
    world.api.done("PATCH", f"{job}?updateMask=labels", owner, json={"labels": {"narwhal-label": "new"}})
    path = f"{_MORE}{_JOB.format(project='narwhal-lab', job_id='narwhal_failed')}"
    world.api.done("DELETE", path, owner)
    after = [world.ask("leopard-viewer", call) for call in listed]
    assert [one for one, was, now in zip(listed, before, after, strict=True) if was != now] == []


def test_changing_calls_have_no_word_of_another_project(world: World) -> None:
    """The last test: it changes leopard's jobs."""
    wrong = []
    for call in calls_in_all_states(world, "leopard", OTHERS):
        status, headers, text = world.ask("leopard-owner", call)
        if "narwhal" in f"{headers}{text}".lower() or (status >= 500 and status != NOT_BUILT):
            wrong.append(f"{status} {call}: {text[:400]}")
    assert not wrong, "\n".join(wrong)
