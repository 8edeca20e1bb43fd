"""Pulling: what is event meanwhile, and what a failure means. A real engine pulls in tests/integration/engine."""

import threading
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from trainyard_agent.engines.docker import puller as image_puller
from trainyard_agent.engines.docker.client import EngineDown, EngineRefused, EngineTimeout
from trainyard_agent.engines.docker.settings import PullPolicy
from trainyard_agent.staging.base import Away, StagingFailed
from trainyard_protocol.states import Reason

NAME = "registry.example/team/trainer:1"


class ScriptedEngine:
    """Has some images, and a registry behind it that answers as the test says."""

    def __init__(self, *local: str, pull: Exception | list[dict[str, Any]] | None = None) -> None:
        self.local = set(local)
        self.asked: list[str] = []
        self._pull = pull

    def image(self, name: str) -> dict[str, Any] | None:
        return {"Id": f"sha256:{name}"} if name in self.local else None

    def pull(self, name: str, progress: Callable[[Mapping[str, Any]], None], silence_s: float) -> None:
        self.asked.append(name)
        if isinstance(self._pull, Exception):
            raise self._pull
        for event in self._pull or []:
            progress(event)
        self.local.add(name)


def ensure(engine: ScriptedEngine, policy: PullPolicy = "missing", report: Any = lambda _: None) -> str:
    return image_puller.ensure_image(engine, NAME, policy, report, threading.Event(), 9)  # type: ignore[arg-type]


def failure(engine: ScriptedEngine, policy: PullPolicy = "missing") -> StagingFailed:
    with pytest.raises(StagingFailed) as caught:
        ensure(engine, policy)
    return caught.value


def test_policy_says_when_to_pull() -> None:
    table: dict[tuple[PullPolicy, bool], bool] = {
        ("missing", True): False,
        ("missing", False): True,
        ("always", True): True,
        ("never", True): False,
    }
    found = {}
    for policy, is_local in table:
        engine = ScriptedEngine(*([NAME] if is_local else []))
        assert ensure(engine, policy) == f"sha256:{NAME}"
        found[policy, is_local] = bool(engine.asked)
    assert found == table
    never = failure(ScriptedEngine(), "never").staging
    assert (never.reason, "image not found" in never.message) == (Reason.IMAGE_FAILED, True)


REFUSALS: dict[str, tuple[type[StagingFailed], Reason, str]] = {
    "manifest unknown": (StagingFailed, Reason.IMAGE_FAILED, "image not found"),
    "failed to register layer: no space left on device": (StagingFailed, Reason.HOST_FAILED, "engine is full"),
    'Get "https://r/v2/": dial tcp: lookup r: no such host': (Away, Reason.GIVEN_BACK, "registry unreachable"),
}


def test_pull_that_fails_is_waited_for_or_a_verdict() -> None:
    wrong = []
    for words, (kind, reason, meaning) in REFUSALS.items():
        found = failure(ScriptedEngine(pull=EngineRefused(500, words)))
        blamed, message = found.staging.reason, found.staging.message
        fits = blamed is reason and message.startswith(f"{NAME}: ") and meaning in message
        if type(found) is not kind or not fits:
            wrong.append((words, found))
    assert wrong == []
    silent = failure(ScriptedEngine(pull=EngineTimeout("does not answer in time")))
    assert isinstance(silent, Away)
    assert "registry unreachable (no progress for 9 s)" in silent.staging.message
    down = failure(ScriptedEngine(pull=EngineDown("the engine at x does not answer"))).staging
    assert (down.reason, down.message) == (Reason.HOST_FAILED, "the engine at x does not answer.")
