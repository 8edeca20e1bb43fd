"""Resources of the v1 API beside jobs: the project's config, locations and operations.

Prediction (models and versions) and Vizier (studies of `/v1`) have no counterpart here: lists of them are empty.
"""

import re
from collections.abc import Mapping
from typing import Any

from trainyard_protocol.errors import FailedPrecondition, NotFound
from trainyard_protocol.wire.agents import AgentInfo
from trainyard_server.context import Backend

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

_REGION = re.compile(r"[a-z][a-z0-9-]{0,62}")


class GoogleResources:
    def __init__(self, backend: Backend) -> None:
        self._backend = backend

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
            raise not_found("location", f"projects/{project}/locations/{region}")

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


def not_found(kind: str, name: str) -> NotFound:
    """The error of a resource that there is not, as the API words it."""
    return NotFound(f"Field: name Error: The {kind} {name} was not found.")


def _location(project: str, region: str, capability: Mapping[str, Any]) -> dict[str, Any]:
    return {"name": f"projects/{project}/locations/{region}", "capabilities": [capability]}
