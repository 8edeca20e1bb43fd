"""Pulling: what is event meanwhile, and what a failure means. A real engine pulls in tests/integration/engine."""

import threading
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from trainyard_agent.engines.docker import puller as image_puller
from trainyard_agent.engines.docker.client import EngineDown, EngineRefused, EngineTimeout
from trainyard_agent.engines.docker.puller import PullProgress
from trainyard_agent.engines.docker.settings import PullPolicy
from trainyard_agent.staging.base import StagingFailed
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


def failure(engine: ScriptedEngine, policy: PullPolicy = "missing") -> tuple[Reason, str]:
    with pytest.raises(StagingFailed) as caught:
        ensure(engine, policy)
    return caught.value.staging.reason, caught.value.staging.message


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
    reason, message = failure(ScriptedEngine(), "never")
    assert (reason, "image not found" in message) == (Reason.IMAGE_FAILED, True)


REFUSALS = {
    (Reason.IMAGE_FAILED, "image not found"): [
        "manifest for 127.0.0.1:5/x:1 not found: manifest unknown: manifest unknown",
        "pull access denied for x, repository does not exist or may require 'docker login': denied: "
        "requested access to the resource is denied",
    ],
    (Reason.IMAGE_FAILED, "unauthorized"): [
        'Head "http://r/v2/x/manifests/1": no basic auth credentials',
        "unauthorized: authentication required",
    ],
    (Reason.STAGING_FAILED, "registry unreachable"): [
        'Get "https://r/v2/": dial tcp: lookup r: no such host',
        'Get "https://r/v2/": dial tcp 127.0.0.1:9: connect: connection refused',
        'Get "https://r/v2/": net/http: request canceled while waiting for connection (Client.Timeout '
        "exceeded while awaiting headers)",
        'Get "http://r/v2/": context deadline exceeded',
        "unexpected EOF",
    ],
    (Reason.STAGING_FAILED, "rate limit"): ["toomanyrequests: You have reached your pull rate limit"],
    (Reason.HOST_FAILED, "disk"): ["failed to register layer: no space left on device"],
    (Reason.STAGING_FAILED, "something new"): ["something new"],
}


def test_pull_that_fails_becomes_a_verdict() -> None:
    wrong = []
    for (reason, verdict), refusals in REFUSALS.items():
        for words in refusals:
            blamed, message = failure(ScriptedEngine(pull=EngineRefused(500, words)))
            if blamed is not reason or not message.startswith(f"{NAME}: ") or verdict not in message:
                wrong.append((words, blamed, message))
    assert wrong == []
    silent = failure(ScriptedEngine(pull=EngineTimeout("does not answer in time")))
    assert silent[0] is Reason.STAGING_FAILED
    assert "registry unreachable (no progress for 9 s)" in silent[1]
    down = failure(ScriptedEngine(pull=EngineDown("the engine at x does not answer")))
    assert down == (Reason.HOST_FAILED, "the engine at x does not answer.")


def test_pull_that_nobody_waits_for_is_given_up() -> None:
    engine = ScriptedEngine(pull=[{"status": "Downloading"}])
    cancelled = threading.Event()
    cancelled.set()
    with pytest.raises(image_puller.PullCancelled):
        image_puller.ensure_image(engine, NAME, "missing", lambda _: None, cancelled)  # type: ignore[arg-type]


def test_progress_counts_all_layers_and_speaks_every_ten_percent() -> None:
    progress = PullProgress("x")

    def downloading(layer: str, current: int) -> str:
        detail = {"current": current, "total": 50_000_000}
        return progress.update({"id": layer, "status": "Downloading", "progressDetail": detail})

    assert progress.update({"status": "Pulling from team/x", "id": "1"}) == "pulling x"
    assert downloading("a", 0) == "pulling x: 0 % of 50 MB"
    assert downloading("b", 10_000_000) == "pulling x: 10 % of 100 MB"
    assert downloading("b", 11_000_000) == ""
    assert downloading("a", 30_000_000) == "pulling x: 40 % of 100 MB"
    assert progress.update({"id": "b", "status": "Download complete", "progressDetail": {}}) == (
        "pulling x: 80 % of 100 MB"
    )
