import asyncio
import threading

from trainyard_server.storage.events.notifier import Notifier


async def test_waiter_is_woken_by_another_thread() -> None:
    notifier = Notifier()
    with notifier.subscribe("a", "b") as news:
        thread = threading.Thread(target=notifier.publish, args=("b",))
        thread.start()
        async with asyncio.timeout(10):
            assert await news.wait(1000) == {"b"}
        thread.join()


async def test_news_that_come_before_the_wait_are_kept_and_given_once() -> None:
    notifier = Notifier()
    with notifier.subscribe("a", "b") as news:
        notifier.publish("a")
        notifier.publish("a", "b", "c")
        assert await news.wait(1000) == {"a", "b"}
        assert await news.wait(0.001) == frozenset()


async def test_news_of_another_topic_wake_nobody() -> None:
    notifier = Notifier()
    with notifier.subscribe("a") as news:
        notifier.publish("b")
        assert await news.wait(0.001) == frozenset()


async def test_subscription_that_has_ended_leaves_nothing() -> None:
    notifier = Notifier()
    with notifier.subscribe("a"), notifier.subscribe("a"):
        assert len(notifier._subscriptions["a"]) == 2
    assert not notifier._subscriptions


async def test_close_wakes_everyone_for_good() -> None:
    notifier = Notifier()
    with notifier.subscribe("a") as news:
        waiting = asyncio.create_task(news.wait(1000))
        await asyncio.sleep(0)
        notifier.close()
        async with asyncio.timeout(10):
            assert await waiting == frozenset()
            assert await news.wait(1000) == frozenset()
    assert notifier.closed


def test_publish_to_a_loop_that_is_gone_is_no_error() -> None:
    notifier = Notifier()

    async def leave_open() -> None:
        notifier.subscribe("a").__enter__()

    asyncio.run(leave_open())
    notifier.publish("a")
