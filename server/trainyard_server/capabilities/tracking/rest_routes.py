"""Routes of all that is not implemented of MLflow's REST API: a sentence, and for a program an answer that it survives.

MLflow's client logs what goes wrong with a trace, and raises what goes wrong with an assessment or a tag: so the latter
are answered, and a line of the job's log says that they are not kept.
"""

import json
import re
from typing import Any

from fastapi import Request
from fastapi.responses import JSONResponse, Response

from trainyard_protocol.errors import NotFound, Unimplemented
from trainyard_server.api.dependencies import AuthenticatedCaller, Cases, RawBody
from trainyard_server.api.middleware.csrf import bearer
from trainyard_server.api.routing import Router
from trainyard_server.capabilities.tracking.messages import NothingToSay
from trainyard_server.capabilities.tracking.notes import NotKept
from trainyard_server.capabilities.tracking.tracking import Tracking
from trainyard_server.domain.access.permissions import Caller
from trainyard_server.domain.access.route_access import MLFLOW_AREAS, UNRECORDED, Access
from trainyard_server.use_cases import UseCases

_REST = "MLflow: anything else is not implemented"
_MAX_BODY = 4 * 2**20
_REGISTRY = re.compile(r"(registered-models|model-versions)\b.*")
_TRACES = re.compile(r"traces(/.*)?|runs/link-traces|prompts?/.*")
_ASSESSMENTS = re.compile(r"traces/[^/]+/assessments")
_EXPERIMENT_TAGS = re.compile(r"experiments/(set|delete)-experiment-tag")

router = Router(body_limit=_MAX_BODY)

Json = dict[str, Any]


def _answer(cases: UseCases, request: Request, caller: Caller, name: str, body: bytes = b"") -> Json:
    """The answer for the program of a job. Raises Unimplemented for people, and where no answer would be true."""
    refusal = Unimplemented(
        f"MLflow's {name} is not implemented here: the tracking of metrics, parameters, runs and models is "
        "(docs/how-to/metrics.md)."
    )
    if not caller.is_run:
        raise refusal
    kind = _kind(name)
    if request.method != "GET":
        cases.of(Tracking).note(bearer(request), kind)
    if kind is NotKept.EXPERIMENTS:
        return {}
    if kind is not NotKept.TRACES or (name == "traces" and request.method == "POST"):
        raise refusal
    if name.endswith("search") or name == "traces":
        return {"traces": []}
    if request.method == "GET":
        raise NotFound(f"There is no trace {name.removeprefix('traces/')[:100]!r}: traces are not kept.")
    return _sent_assessment(body) if _ASSESSMENTS.fullmatch(name) else {}


def _kind(name: str) -> NotKept:
    if _EXPERIMENT_TAGS.fullmatch(name):
        return NotKept.EXPERIMENTS
    if _REGISTRY.fullmatch(name):
        return NotKept.REGISTRY
    return NotKept.TRACES if _TRACES.fullmatch(name) else NotKept.OTHER


def _sent_assessment(body: bytes) -> Json:
    try:
        sent = json.loads(body or b"{}")
    except (ValueError, RecursionError):
        return {}
    assessment = sent.get("assessment") if isinstance(sent, dict) else None
    return {"assessment": assessment} if isinstance(assessment, dict) else {}


def _read(name: str, request: Request, cases: Cases, caller: AuthenticatedCaller) -> Response:
    return JSONResponse(_answer(cases, request, caller, name))


def _call(name: str, request: Request, cases: Cases, caller: AuthenticatedCaller, body: RawBody) -> Response:
    return JSONResponse(_answer(cases, request, caller, name, body))


for _area in MLFLOW_AREAS:
    _path = f"{_area}/{{name:path}}"
    router.get(_path, Access.PERSON, _REST, response_model=NothingToSay)(_read)
    for _method in ("POST", "PUT", "PATCH", "DELETE"):
        router.add(_method, _path, Access.PERSON, _REST, UNRECORDED, response_model=NothingToSay)(_call)
