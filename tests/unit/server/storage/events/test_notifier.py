import asyncio
import threading

from trainyard_server.storage.events.notifier import (
    JOBS_TOPIC,
    PROGRESS_TOPIC,
    JobChanges,
    Notifier,
    job_topic,
    progress_topic,
    waiting_topics,
)


async def test_waiter_is_woken_by_another_thread() -> None:
    notifier = Notifier()
    with notifier.subscribe("a", "b") as subscription:
        thread = threading.Thread(target=notifier.publish, args=("b",))
        thread.start()
        async with asyncio.timeout(60):
            assert await subscription.wait(1000) == {"b"}
        thread.join()


async def test_events_before_the_wait_are_returned_once() -> None:
    notifier = Notifier()
    with notifier.subscribe("a", "b") as subscription:
        notifier.publish("a")
        notifier.publish("a", "b", "c")
        assert await subscription.wait(1000) == {"a", "b"}
        notifier.publish("c")
        assert await subscription.wait(0.001) == frozenset()


async def test_subscribers_to_all_jobs_receive_which_of_them_changed() -> None:
    notifier = Notifier()
    with notifier.subscribe(JOBS_TOPIC, PROGRESS_TOPIC) as every, notifier.subscribe(job_topic(7)) as one:
        notifier.deliver(job_topic(7), progress_topic(8), *waiting_topics([9]))  # as from another process
        assert await every.wait(1000) == {job_topic(7), progress_topic(8)}
        assert await one.wait(1000) == {job_topic(7)}


def test_changes_say_what_changed_of_which_jobs() -> None:
    topics = [job_topic(7), progress_topic(8), *waiting_topics([9]), "agent:7", "queue"]
    changes = JobChanges.among(topics)
    assert changes == JobChanges(frozenset((7,)), frozenset((8,)), frozenset((9,)), any_job=False)
    assert changes.keys == {7, 8, 9}
    assert JobChanges.among(waiting_topics(range(1000))).any_job


async def test_listener_is_called_before_subscribers_are_woken() -> None:
    notifier, order = Notifier(), list[str]()
    with notifier.subscribe("a") as subscription:
        notifier.listen(lambda topics: order.append(f"{topics} before {bool(subscription._pending)}"))
        notifier.publish("a")
    assert order == ["('a',) before False"]


async def test_close_wakes_everyone_for_good() -> None:
    notifier = Notifier()
    with notifier.subscribe("a") as subscription:
        waiting = asyncio.create_task(subscription.wait(1000))
        await asyncio.sleep(0)
        notifier.close()
        async with asyncio.timeout(60):
            assert await waiting == frozenset()
            assert await subscription.wait(1000) == frozenset()
    assert notifier.closed


def test_publish_to_a_loop_that_is_gone_is_no_error() -> None:
    notifier = Notifier()

    async def leave_open() -> None:
        notifier.subscribe("a").__enter__()

    asyncio.run(leave_open())
    notifier.publish("a")
