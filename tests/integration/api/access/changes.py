"""The call of each route that changes something, by its action."""

import re
from typing import Any

from integration.api.api_support import ADMIN, ALICE, package_job
from integration.api.tars import tar_of
from trainyard_server.domain.access.route_access import Route

DONE: dict[str, tuple[dict[str, str], dict[str, Any]]] = {
    "sign-in": ({}, {"data": {"token": "alices-secret"}}),
    "sign-out": ({}, {}),
    "jobs.create": (ALICE, {"json": {"jobId": "job", "trainingInput": package_job()}}),
    "jobs.set-origin": (ALICE, {"json": {"python": "3.11.2"}}),
    "jobs.update": (ALICE, {"json": {"labels": {"a": "b"}}, "params": {"updateMask": "labels"}}),
    "jobs.note": (ALICE, {"json": {"note": "a note"}}),
    "views.save": (ALICE, {"json": {"query": "sort=name"}}),
    "views.delete": (ALICE, {}),
    "jobs.cancel": (ALICE, {}),
    "jobs.delete": (ALICE, {}),
    "backups.create": (ADMIN, {}),
    "quotas.reload": (ADMIN, {}),
    "sign-in-codes.create": (ALICE, {}),
    "google-keys.create": (ALICE, {}),
    "google-keys.revoke": (ALICE, {}),
    "tokens.create": (ALICE, {"json": {}}),
    "tokens.revoke": (ALICE, {}),
    "members.set": (ADMIN, {"json": {"role": "viewer"}}),
    "members.remove": (ADMIN, {}),
    "packages.upload": (ALICE, {"content": b"a package"}),
    "programs.upload": (ALICE, {"content": tar_of({"train.py": b"print(1)"})}),
    "secrets.set": (ADMIN, {"json": {"value": "never-shown"}}),
    "secrets.delete": (ADMIN, {}),
    "channels.set": (ADMIN, {"json": {"address": "http://127.0.0.1:1/never-shown"}}),
    "channels.test": (ADMIN, {}),
    "channels.delete": (ADMIN, {}),
    "agents.drain": (ADMIN, {"json": {"draining": True}}),
    "agents.evict": (ADMIN, {}),
    "agents.remove": (ADMIN, {}),
}
"""Who makes each call and the request, in an order in which each of them is accepted."""


def concrete(route: Route, **names: str) -> str:
    """The path of a route with these names, or the usual ones."""
    usual = {"project": "p", "job_id": "job", "filename": "a.whl", "agent": "laptop", "task": "master-replica-0"}
    return re.sub(r"\{(\w+)(?::path)?\}", lambda found: (usual | names).get(found[1], "x"), route.path)
