"""What the server does by itself: it ticks, at once when something calls for it and otherwise every while."""

import logging

from starlette.concurrency import run_in_threadpool

from trainyard_server.conductor import Conductor
from trainyard_server.notify import QUEUE_TOPIC, Notifier

logger = logging.getLogger(__name__)


async def tick_forever(conductor: Conductor, notifier: Notifier, tick_s: float) -> None:
    """Ends only when it is cancelled, or everything closes. A tick that fails is logged; the next one tries again."""
    with notifier.subscribe(QUEUE_TOPIC) as news:
        while not notifier.closed:
            try:
                await run_in_threadpool(conductor.tick)
            except Exception:
                logger.exception("A tick failed; the next one comes in %g s", tick_s)
            await news.wait(tick_s)
