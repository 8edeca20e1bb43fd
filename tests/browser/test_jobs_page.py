"""The list of jobs."""

from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from browser.browser_support import Look, Yard, axe

Open = Callable[..., Page]


@pytest.fixture
def busy(yard: Yard) -> Yard:
    """Jobs in every state, and one of them in trouble."""
    agent = yard.agent(cpus=2)
    yard.submit("digits_baseline", labels={"team": "vision", "stage": "final"})
    yard.submit("cnn_large", labels={"team": "vision"}, project="research")
    good = yard.placed(agent, "digits_baseline")
    agent.start(good)
    agent.exit(run=good)
    bad = yard.placed(agent, "cnn_large")
    agent.start(bad)
    agent.log("Traceback (most recent call last):", "ValueError: no data", run=bad)
    agent.exit(code=1, run=bad)
    yard.submit("transformer_lr3", labels={"team": "language"})
    yard.submit("transformer_lr4", labels={"team": "language"})
    running = yard.placed(agent, "transformer_lr3")
    agent.start(running)
    for step in range(100, 1300, 100):
        loss = 2.3 / (1 + step / 150) + 0.05 * (step % 300 == 0)
        agent.log(
            f'{{"event": "progress", "step": {step}, "steps": 5000, "epoch": 2, "loss": {loss}}}', run=running
        )
    yard.submit("waits", workerCount="1", workerType="local-1")
    return yard


@pytest.mark.parametrize("look", Look)
def test_jobs_are_shown(busy: Yard, open_page: Open, shot: Callable[..., Path], look: Look) -> None:
    page = open_page("/", look=look)
    expect(page.get_by_role("row", name="transformer_lr3")).to_contain_text("1,200 / 5,000")
    shot(page, f"jobs-{look.name.lower()}")
    assert axe(page) == []
