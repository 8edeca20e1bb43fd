"""Shared by the browser tests: a server with a scripted agent, viewports, and accessibility checks."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from enum import Enum
from typing import Any
from urllib.parse import urlparse

from axe_playwright_python.sync_playwright import Axe  # type: ignore[import-untyped]
from playwright.sync_api import BrowserContext, Page

from browser.link import Link
from integration.api.api_support import ADMIN, AGENT, GB, TOKENS, ScriptedAgent, Server, eventually
from trainyard_protocol.answers.usage import UsageBatch, UsageSample
from trainyard_protocol.job.resources import Gpu
from trainyard_protocol.wire.sync import RunOrder
from trainyard_server.domain.access.permissions import Token
from trainyard_server.domain.access.sessions import Session, cookie

_STANDARDS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
_OF_COLOURS = ["color-contrast", "link-in-text-block"]


Open = Callable[..., Page]
"""The fixture `open_page`."""

T4 = "NVIDIA_TESLA_T4"


class Viewport(Enum):
    """Size and colour scheme of the browser's window."""

    LIGHT = (1280, 860, "light")
    DARK = (1280, 860, "dark")
    WIDE = (1440, 900, "light")
    WIDE_DARK = (1440, 900, "dark")
    NARROW = (380, 800, "light")
    NARROW_DARK = (380, 800, "dark")

    @property
    def width(self) -> int:
        return self.value[0]

    @property
    def height(self) -> int:
        return self.value[1]

    @property
    def scheme(self) -> Any:
        return self.value[2]


def in_each_viewport(page: Page) -> Iterator[Viewport]:
    """A wide window, light, and a narrow one, dark: the page's window, as large and of that scheme."""
    for viewport in (Viewport.LIGHT, Viewport.NARROW_DARK):
        page.set_viewport_size({"width": viewport.width, "height": viewport.height})
        page.emulate_media(color_scheme=viewport.scheme)
        yield viewport


def is_within_window(page: Page) -> bool:
    """Whether the page is no wider than its window."""
    return bool(page.evaluate("document.documentElement.scrollWidth <= innerWidth"))


class DashboardServer:
    """A server with agents that the test scripts. `stop` ends it; `again` starts its successor at the same address."""

    def __init__(
        self,
        api: Server,
        link: Link,
        stop: Callable[[], None] | None = None,
        again: Callable[[], AbstractContextManager[Server]] | None = None,
    ) -> None:
        self.api = api
        self.link = link
        self.url = link.url
        self._stop = stop
        self._again = again

    def stop(self) -> None:
        assert self._stop is not None, "this server cannot be stopped"
        self._stop()

    def again(self) -> AbstractContextManager[Server]:
        assert self._again is not None, "this server cannot be stopped"
        return self._again()

    def sign_in(self, context: BrowserContext, role: str) -> None:
        """Sign in with that role; "": not at all."""
        if not role:
            return
        token = next(token for token in TOKENS if token.role == role)
        line = cookie("http", urlparse(self.url).netloc, self.session(token), self.api.clock())
        name, _, value = line.partition(";")[0].partition("=")
        context.add_cookies([{"name": name, "value": value, "url": self.url, "httpOnly": True, "sameSite": "Lax"}])

    def session(self, token: Token) -> Session:
        return self.api.use_cases.sessions.open(token.credential, self.api.clock())

    def agent(self, name: str = "laptop", **given: Any) -> ScriptedAgent:
        agent = ScriptedAgent(self.api, name, **given)
        agent.sync()
        return agent

    def gpu_box(self, name: str = "gpu-box", gpus: int = 4, cpus: int = 16) -> ScriptedAgent:
        agent = ScriptedAgent(self.api, name, cpus=cpus, memory_gb=4 * cpus)
        devices = tuple(Gpu(id=f"GPU-{name}-{n}", type=T4, memory_bytes=16 * GB) for n in range(gpus))
        capacity = agent.info.capacity.model_copy(update={"gpus": devices})
        agent.info = agent.info.model_copy(update={"capacity": capacity})
        agent.sync()
        return agent

    def report(self, *samples: UsageSample) -> None:
        """Usage, in batches as large as an agent's."""
        for first in range(0, len(samples), 200):
            batch = samples[first : first + 200]
            body = UsageBatch(samples=batch).model_dump_json()
            answer = self.api.client.post("/agent/v1/usage", content=body, headers=AGENT)
            assert answer.json() == {"taken": len(batch)}

    def submit(
        self, job_id: str, *, project: str = "p", labels: dict[str, str] | None = None, **training_input: Any
    ) -> None:
        given = {"scaleTier": "CUSTOM", "masterType": "local-1", "pythonModule": "trainer.task"}
        body = {"jobId": job_id, "trainingInput": given | training_input, "labels": labels or {}}
        answer = self.api.client.post(f"/v1/projects/{project}/jobs", json=body, headers=ADMIN)
        assert answer.status_code == 200, answer.text

    def started(self, agent: ScriptedAgent, job_id: str, **given: Any) -> RunOrder:
        """The run of a new job, scheduled at once, whose replicas run."""
        self.submit(job_id, **given)
        self.api.use_cases.controller.tick()
        run = self.placed(agent, job_id)
        agent.start(run)
        return run

    def placed(self, agent: ScriptedAgent, job_id: str, after: int = 0) -> RunOrder:
        """The run of a job with a number above `after`, once the agent has received it."""
        runs: list[RunOrder] = []

        def is_placed() -> bool:
            agent.sync()
            runs.extend(run for run in agent.runs.values() if run.job_id == job_id and run.number > after)
            return bool(runs)

        eventually(is_placed)
        return runs[0]


def axe(page: Page, viewport: Viewport = Viewport.LIGHT) -> list[str]:
    """Violations that axe-core finds. In dark viewports only colours are checked: the rest is the same as in light
    ones, and axe is the slowest part of a test."""
    rules = (
        {"type": "rule", "values": _OF_COLOURS} if viewport.scheme == "dark" else {"type": "tag", "values": _STANDARDS}
    )
    # Without "resultTypes" it also describes every element that passes.
    page.evaluate("document.getElementById('swagger-ui')?.remove()")  # that markup is not ours
    results = Axe().run(page, options={"runOnly": rules, "resultTypes": ["violations"]})
    return [
        f"{violation['id']}: {violation['help']}: {node['html'][:160]}"
        for violation in results.response["violations"]
        for node in violation["nodes"]
    ]
