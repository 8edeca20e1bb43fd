"""What the server does by itself: it ticks, at once when something calls for it and otherwise every while."""

import logging

from starlette.concurrency import run_in_threadpool

from trainyard_server.control.controller import Conductor
from trainyard_server.control.leader_election import Leadership
from trainyard_server.services.health import Pulse
from trainyard_server.storage.events.notifier import PROGRESS_TOPIC, QUEUE_TOPIC, Notifier
from trainyard_server.storage.failures import Troubles
from trainyard_server.storage.logs.scrub import Scrub
from trainyard_server.storage.logs.store import LogStore
from trainyard_server.storage.progress import Steps

logger = logging.getLogger(__name__)

_TROUBLE = "Jobs cannot be moved forward"


async def tick_forever(
    conductor: Conductor, leadership: Leadership, notifier: Notifier, tick_s: float, pulse: Pulse
) -> None:
    """Ends only when it is cancelled, or everything closes. A tick that fails is logged, once for each trouble;
    the next one tries again."""
    troubles = Troubles(logger)

    def tick() -> None:
        if leadership.held():
            conductor.tick()
        else:
            conductor.look_on()

    with notifier.subscribe(QUEUE_TOPIC) as news:
        while not notifier.closed:
            try:
                await run_in_threadpool(tick)
            except Exception as error:  # noqa: BLE001 - logged, and the next one tries again
                pulse.failed(error)
                troubles.note(_TROUBLE, error)
            else:
                pulse.beat()
                troubles.over(_TROUBLE, "Jobs move forward again.")
            await news.wait(tick_s)


async def flush_forever(steps: Steps, notifier: Notifier, every_s: float) -> None:
    """Each process writes what it has read of the replicas' steps, and once more when everything closes."""
    troubles = Troubles(logger)
    with notifier.subscribe("the end") as end:
        while not notifier.closed:
            await end.wait(every_s)
            try:
                if await run_in_threadpool(steps.flush):
                    notifier.publish(PROGRESS_TOPIC)
            except Exception as error:  # noqa: BLE001 - logged, and the next one tries again
                troubles.note("Steps cannot be written", error)
            else:
                troubles.over("Steps cannot be written", "Steps are written again.")


async def scrub_forever(logs: LogStore, notifier: Notifier, pause_s: float, step_s: float = 1.0) -> None:
    """Reads all logs, a step each `step_s`, then rests for `pause_s`. Each of several servers does it: what is damaged
    is to be known to all. Ends when it is cancelled, or everything closes."""
    troubles = Troubles(logger)
    scrub = Scrub(logs)
    with notifier.subscribe("scrub") as close:  # a topic without news: only the end wakes it
        while not notifier.closed:
            try:
                more = await run_in_threadpool(scrub.step)
            except Exception as error:  # noqa: BLE001 - logged, and the next round tries again
                troubles.note("The logs cannot be checked", error)
                more = False
            if not more:
                scrub = Scrub(logs)
            await close.wait(step_s if more else pause_s)
