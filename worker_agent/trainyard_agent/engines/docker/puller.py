"""Pulling of images: policy, progress and errors."""

import threading
from collections.abc import Callable, Mapping
from typing import Any

from trainyard_agent.engines.docker.client import DockerClient, EngineDown, EngineRefused, EngineTimeout
from trainyard_agent.engines.docker.settings import PullPolicy
from trainyard_agent.staging.base import Away, StagingFailed
from trainyard_agent.staging.image_errors import PullCause, verdict
from trainyard_protocol.states import Reason

PULL_SILENCE_S = 120.0
"""Seconds without progress after which a registry counts as unreachable."""

_STEP = 10  # percent between two reports
_NO_SIZE_YET, _NOTHING_YET = -1, -2
_LOGIN, _DISK = "docker login", "the disk of the container engine"


class PullCancelled(Exception):
    """The pull was cancelled."""


def ensure_image(
    engine: DockerClient,
    name: str,
    policy: PullPolicy,
    report: Callable[[str], None],
    cancelled: threading.Event,
    silence_s: float = PULL_SILENCE_S,
) -> str:
    """Return the engine's id of the image, pulled if the policy requires it. Blocks.

    `report` gets the progress. Raises Away for a registry that is, StagingFailed for one that refuses it; PullCancelled
    soon after `cancelled` is set.
    """
    try:
        image = None if policy == "always" else engine.image(name)
        if image is None and policy == "never":
            raise StagingFailed(
                Reason.IMAGE_FAILED,
                f"{name}: image not found on the agent's machine, and this agent pulls none (--pull never).",
            )
        if image is None:
            _pull(engine, name, report, cancelled, silence_s)
            image = engine.image(name)
    except EngineDown as down:
        raise StagingFailed(Reason.HOST_FAILED, f"{down}.") from down
    except EngineRefused as refused:
        cause, message = verdict(name, refused.message, _LOGIN, _DISK)
        raise (Away(message) if cause is PullCause.AWAY else StagingFailed(Reason(cause.value), message)) from refused
    if image is None:
        raise StagingFailed(Reason.STAGING_FAILED, f"{name}: it was removed as soon as it was pulled.")
    return str(image["Id"])


class PullProgress:
    """Progress of a pull over all layers, as a message for every _STEP percent."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._layers: dict[str, tuple[int, int]] = {}
        self._reported = _NOTHING_YET

    def update(self, event: Mapping[str, Any]) -> str:
        """Add an event of the engine. Returns the message if it is a new one; else ""."""
        layer, detail = event.get("id"), event.get("progressDetail") or {}
        if layer and event.get("status") == "Downloading" and detail.get("total"):
            self._layers[layer] = (int(detail["current"]), int(detail["total"]))
        elif layer in self._layers and event.get("status") in ("Download complete", "Pull complete"):
            total = self._layers[layer][1]
            self._layers[layer] = (total, total)
        done, total = (sum(part) for part in zip(*self._layers.values(), strict=True)) if self._layers else (0, 0)
        percent = 100 * done // total // _STEP * _STEP if total else _NO_SIZE_YET
        if percent <= self._reported:
            return ""
        self._reported = percent
        size = f": {percent} % of {total / 1e6:.0f} MB" if total else ""
        return f"pulling {self._name}{size}"


def _pull(
    engine: DockerClient, name: str, report: Callable[[str], None], cancelled: threading.Event, silence_s: float
) -> None:
    progress = PullProgress(name)

    def update(event: Mapping[str, Any]) -> None:
        if cancelled.is_set():
            raise PullCancelled
        message = progress.update(event)
        if message:
            report(message)

    report(f"pulling {name}")
    try:
        engine.pull(name, update, silence_s)
    except EngineTimeout as silent:
        raise Away(f"{name}: registry unreachable (no progress for {silence_s:g} s).") from silent
