"""Getting images: when to pull, what to say meanwhile, and what went wrong."""

import re
import threading
from collections.abc import Callable, Mapping
from typing import Any, Literal

from trainyard_agent.runtimes.docker.engine import Engine, EngineDown, EngineRefused, EngineSilent
from trainyard_agent.staging.base import StagingFailed
from trainyard_protocol.states import Reason

PullPolicy = Literal["missing", "always", "never"]

PULL_SILENCE_S = 120.0
"""How long a registry may say nothing before it counts as unreachable."""

_STEP = 10  # percent between two words about it
_NO_SIZE_YET, _NOTHING_YET = -1, -2

_VERDICTS: tuple[tuple[str, Reason, str], ...] = (
    # The engine passes on what registries say, most of it with status 500: only the words tell.
    (
        r"repository does not exist or may require",
        Reason.IMAGE_FAILED,
        "image not found, or one that the registry shows to nobody without `docker login`",
    ),
    (
        r"unauthorized|authentication required|no basic auth credentials|denied: requested|access denied|forbidden",
        Reason.IMAGE_FAILED,
        "unauthorized: the registry does not let this agent pull it; `docker login` on its machine, as the "
        "user who runs the agent, gives it credentials",
    ),
    (
        r"not found|manifest unknown|name unknown|no such image|invalid reference format",
        Reason.IMAGE_FAILED,
        "image not found",
    ),
    (r"toomanyrequests|rate limit", Reason.STAGING_FAILED, "the registry's rate limit is reached"),
    (r"no space left on device", Reason.HOST_FAILED, "the disk of the container engine is full"),
    (
        r"dial tcp|no such host|connection refused|i/o timeout|timeout exceeded|request canceled"
        r"|deadline exceeded|tls|eof|connection reset|network is unreachable|server misbehaving|x509",
        Reason.STAGING_FAILED,
        "registry unreachable",
    ),
)


class GivenUp(Exception):
    """Nobody waits for the image any more."""


def present(
    engine: Engine,
    name: str,
    policy: PullPolicy,
    say: Callable[[str], None],
    given_up: threading.Event,
    silence_s: float = PULL_SILENCE_S,
) -> str:
    """The engine's id for the image, pulled if the policy asks for it. Blocks.

    `say` is told what it is doing. Raises StagingFailed; GivenUp soon after `given_up` is set.
    """
    try:
        found = None if policy == "always" else engine.image(name)
        if found is None and policy == "never":
            raise StagingFailed(
                Reason.IMAGE_FAILED,
                f"{name}: image not found on the agent's machine, and this agent pulls none (--pull never).",
            )
        if found is None:
            _pull(engine, name, say, given_up, silence_s)
            found = engine.image(name)
    except EngineDown as down:
        raise StagingFailed(Reason.HOST_FAILED, f"{down}.") from down
    except EngineRefused as refused:
        raise StagingFailed(*verdict(name, refused.message)) from refused
    if found is None:
        raise StagingFailed(Reason.STAGING_FAILED, f"{name}: it was removed as soon as it was pulled.")
    return str(found["Id"])


def verdict(name: str, words: str) -> tuple[Reason, str]:
    """Why it could not be pulled, and whose fault that is; pure."""
    for pattern, reason, meaning in _VERDICTS:
        if re.search(pattern, words, re.IGNORECASE):
            return reason, f"{name}: {meaning} ({words.strip().rstrip('.')})."
    return Reason.STAGING_FAILED, f"{name}: it could not be pulled ({words.strip().rstrip('.')})."


class Progress:
    """What the engine says of a pull, layer by layer, in a sentence that changes now and then."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._layers: dict[str, tuple[int, int]] = {}
        self._told = _NOTHING_YET

    def hear(self, said: Mapping[str, Any]) -> str:
        """The sentence, if it is a new one; else ""."""
        layer, detail = said.get("id"), said.get("progressDetail") or {}
        if layer and said.get("status") == "Downloading" and detail.get("total"):
            self._layers[layer] = (int(detail["current"]), int(detail["total"]))
        elif layer in self._layers and said.get("status") in ("Download complete", "Pull complete"):
            total = self._layers[layer][1]
            self._layers[layer] = (total, total)
        done, total = (
            (sum(part) for part in zip(*self._layers.values(), strict=True)) if self._layers else (0, 0)
        )
        percent = 100 * done // total // _STEP * _STEP if total else _NO_SIZE_YET
        if percent <= self._told:
            return ""
        self._told = percent
        size = f": {percent} % of {total / 1e6:.0f} MB" if total else ""
        return f"pulling {self._name}{size}"


def _pull(
    engine: Engine, name: str, say: Callable[[str], None], given_up: threading.Event, silence_s: float
) -> None:
    progress = Progress(name)

    def hear(said: Mapping[str, Any]) -> None:
        if given_up.is_set():
            raise GivenUp
        sentence = progress.hear(said)
        if sentence:
            say(sentence)

    say(f"pulling {name}")
    try:
        engine.pull(name, hear, silence_s)
    except EngineSilent as silent:
        raise StagingFailed(
            Reason.STAGING_FAILED, f"{name}: registry unreachable (no word of it for {silence_s:g} s)."
        ) from silent
