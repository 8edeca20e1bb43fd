"""Resources of the v1 API beside jobs: the project's config, locations, operations, and IAM of jobs.

Prediction (models and versions) and Vizier (studies of `/v1`) have no counterpart here: lists of them are empty.
"""

import base64
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from trainyard_protocol.errors import FailedPrecondition, InvalidArgument, NotFound, Violation, quoted
from trainyard_protocol.wire.agents import AgentInfo
from trainyard_server.context import Backend
from trainyard_server.domain.access.permissions import Caller, Role
from trainyard_server.services.jobs.jobs import known_job
from trainyard_server.storage.db.tables import people

ACCELERATORS = (
    "NVIDIA_TESLA_K80",
    "NVIDIA_TESLA_P100",
    "NVIDIA_TESLA_V100",
    "NVIDIA_TESLA_P4",
    "NVIDIA_TESLA_T4",
    "NVIDIA_TESLA_A100",
    "TPU_V2",
    "TPU_V3",
)
"""Accelerators of the API's Capability. Those that it does not know are not listed."""

ANY_REGION = "local"
"""The location of an installation that accepts every region."""

_MOST_PERMISSIONS = 100
_REGION = re.compile(r"[a-z][a-z0-9-]{0,62}")
_IAM_ROLES: Mapping[Role, str] = {
    Role.VIEWER: "roles/ml.viewer",
    Role.SUBMITTER: "roles/ml.developer",
    Role.ADMIN: "roles/ml.admin",
}
_READ = frozenset({"ml.jobs.get", "ml.jobs.list", "ml.jobs.getIamPolicy"})
_CREATE = frozenset({"ml.jobs.create"})
_CHANGE = frozenset({"ml.jobs.update", "ml.jobs.cancel"})


class GoogleResources:
    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def config(self) -> dict[str, Any]:
        """The project's config. It has no service account: jobs use the credentials of their agents."""
        return {"config": {}}

    def locations(self, project: str) -> dict[str, Any]:
        """The regions that jobs may name, or one for all."""
        regions = self._backend.settings.regions or (ANY_REGION,)
        capability = self._capability()
        return {"locations": [_location(project, region, capability) for region in regions]}

    def location(self, project: str, region: str) -> dict[str, Any]:
        """Raises NotFound for a region that jobs may not name."""
        self.check_location(project, region)
        return _location(project, region, self._capability())

    def check_location(self, project: str, region: str) -> None:
        """Raises NotFound for a region that jobs may not name."""
        regions = self._backend.settings.regions
        if region not in regions if regions else not _REGION.fullmatch(region):
            raise _not_found("location", f"projects/{project}/locations/{region}")

    def operation(self, name: str) -> dict[str, Any]:
        """Raises NotFound: jobs are no operations, and nothing else runs."""
        raise _not_found("operation", name)

    def policy(self, project: str, job_id: str) -> dict[str, Any]:
        """The roles in the job's project, as an IAM policy. Raises NotFound."""
        with self._backend.store.read() as reader:
            known_job(reader, project, job_id)
            members = people.members(reader, project)
        bindings = [
            {"role": iam_role, "members": names}
            for role, iam_role in _IAM_ROLES.items()
            if (names := sorted(f"user:{row.name}" for row in members if row.role == role.value))
        ]
        etag = hashlib.sha256(json.dumps(bindings).encode()).digest()[:9]
        policy: dict[str, Any] = {"version": 1, "etag": base64.b64encode(etag).decode()}
        return {**policy, "bindings": bindings} if bindings else policy

    def set_policy(self, project: str, job_id: str) -> dict[str, Any]:
        """Raises FailedPrecondition: a job has no roles of its own; NotFound."""
        with self._backend.store.read() as reader:
            known_job(reader, project, job_id)
        raise FailedPrecondition(
            "A job has no IAM policy of its own: roles are those of its project. Give one with "
            f"`trainyard projects add-member NAME --project {project} --role ROLE`."
        )

    def granted(self, caller: Caller, project: str, job_id: str, body: object) -> dict[str, Any]:
        """The permissions of a request that the caller has. Raises InvalidArgument, NotFound."""
        asked = _permissions(body)
        with self._backend.store.read() as reader:
            job = known_job(reader, project, job_id)
            owner = job.owner
        granted = set(_READ)
        if caller.may(Role.SUBMITTER, project):
            granted |= _CREATE
        if caller.may_change(project, owner):
            granted |= _CHANGE
        permissions = [permission for permission in asked if permission in granted]
        return {"permissions": permissions} if permissions else {}

    def _capability(self) -> dict[str, Any]:
        with self._backend.store.read() as reader:
            agents = [AgentInfo.model_validate(agent.info) for agent in reader.agents()]
        present = {kind for agent in agents for kind in agent.capacity.accelerators}
        accelerators = [name for name in ACCELERATORS if name in present]
        return {"type": "TRAINING", **({"availableAccelerators": accelerators} if accelerators else {})}


def no_prediction() -> FailedPrecondition:
    """The answer to what would make a model, a version, a prediction or a study of Vizier."""
    return FailedPrecondition(
        "This service runs training jobs. Prediction (models, versions) and Vizier's studies are not offered; "
        "hyperparameter tuning is part of a training job (trainingInput.hyperparameters)."
    )


def _not_found(kind: str, name: str) -> NotFound:
    return NotFound(f"Field: name Error: The {kind} {name} was not found.")


def _location(project: str, region: str, capability: Mapping[str, Any]) -> dict[str, Any]:
    return {"name": f"projects/{project}/locations/{region}", "capabilities": [capability]}


def _permissions(body: object) -> Sequence[str]:
    asked = body.get("permissions", []) if isinstance(body, Mapping) else None
    if not isinstance(asked, list) or not all(isinstance(permission, str) for permission in asked):
        raise InvalidArgument(Violation("permissions", f"must be a list of names; this is {quoted(asked)}."))
    if len(asked) > _MOST_PERMISSIONS:
        raise InvalidArgument(Violation("permissions", f"may have {_MOST_PERMISSIONS} names; it has {len(asked)}."))
    if wild := next((permission for permission in asked if "*" in permission), ""):
        raise InvalidArgument(Violation("permissions", f"may have no wildcards; this is {quoted(wild)}."))
    return asked
