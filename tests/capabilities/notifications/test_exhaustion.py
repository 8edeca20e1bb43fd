"""Notifications of a project arrive whatever another project does to the resolver, to connections and to mails."""

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from beds.services.receivers import HttpReceiver, http_receiver, mail_server
from beds.waiting import until
from integration.api.api_support import BOSS, Clock, Server, server
from trainyard_protocol.answers.operating.notifications import ChannelRequest
from trainyard_protocol.errors import ResourceExhausted
from trainyard_protocol.job.keys.notifications import Transport
from trainyard_server.capabilities.notifications import mail, webhooks
from trainyard_server.capabilities.notifications import store as rows
from trainyard_server.capabilities.notifications.channels import Channels
from trainyard_server.capabilities.notifications.options import NotificationOptions
from trainyard_server.capabilities.notifications.sender import Sender
from trainyard_server.capabilities.notifications.store import Receiver
from trainyard_server.capabilities.notifications.turns import OF_PROJECT

DUE = 278
CONTENT = {"type": "test", "time": "", "project": "p", "message": "A message.", "url": ""}


class Names:
    """A resolver: names below `silent.example` are never answered before the end of the test, those below
    `tarpit.example` are this machine."""

    def __init__(self) -> None:
        self.end = threading.Event()
        self.asked: list[str] = []
        self._answer: Callable[..., Any] = socket.getaddrinfo

    def __call__(self, host: str, *given: Any, **options: Any) -> Any:
        self.asked.append(host)
        if host.endswith("silent.example"):
            self.end.wait()
            raise socket.gaierror(socket.EAI_AGAIN, "it was never answered")
        return self._answer("127.0.0.1" if host.endswith("tarpit.example") else host, *given, **options)


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Iterator[Names]:
    names = Names()
    monkeypatch.setattr(socket, "getaddrinfo", names)
    yield names
    names.end.set()


def add(api: Server, project: str, *addresses: str, channel: str = "") -> None:
    """Notifications that are due, each of a job of its own."""
    with api.use_cases.backend.store.write() as writer:
        for number, address in enumerate(addresses):
            transport = Transport.JSON if "://" in address else Transport.MAIL
            receiver = Receiver(channel, transport, address)
            rows.add(writer, rows.notification(project, f"job_{number}", "end", receiver, CONTENT, api.clock()))


def step(api: Server) -> bool:
    api.client.run(api.use_cases.of(Sender).step)
    return True


def arrived(api: Server, project: str) -> int:
    """The number of a project's notifications that were delivered by now."""
    step(api)
    found = api.get(f"/trainyard/v1/projects/{project}/notifications")["notifications"]
    return [notification["state"] for notification in found].count("delivered")


def test_notification_arrives_while_another_project_exhausts_what_it_can(
    tmp_path: Path, names: Names, receiver: HttpReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhooks, "_TIMEOUT_S", 3600.0)  # no attempt gives its place back
    monkeypatch.setattr(mail, "_LONGEST_S", 3600.0)
    failed = []
    with ExitStack() as stack:
        port = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=DUE)).getsockname()[1]
        mails = stack.enter_context(mail_server())
        mails.slow.add("slow.example")
        options = NotificationOptions(mails.address, "trains@example.com", security="none", local_webhooks=True)
        hostile = {
            "names without an answer": "http://n{}.silent.example/",
            "one name without an answer": "http://silent.example/{}",
            "a tarpit": f"http://127.0.0.1:{port}/{{}}",
            "names of a tarpit": f"http://n{{}}.tarpit.example:{port}/",
            "mails that the mail server holds": "n{}@slow.example",
        }
        for case, address in hostile.items():
            with server(tmp_path / case, Clock(), options=(options,)) as api:
                add(api, "hostile", *(address.format(number) for number in range(DUE)))
                step(api)
                add(api, "q", receiver.url, "ana@example.com")
                try:
                    until(partial(arrived_both, api), case, patience_s=60)
                except AssertionError as error:
                    failed.append(str(error))
                if arrived(api, "hostile"):
                    failed.append(f"{case}: it hindered nobody")
    assert failed == []
    assert len(receiver.accepted) == 5
    silent = [name for name in names.asked if name.endswith("silent.example")]
    assert len(silent) <= 2 * OF_PROJECT, "lookups without an answer hold few threads"


def arrived_both(api: Server) -> bool:
    return arrived(api, "q") == 2


def test_tests_of_a_project_are_bounded_and_hinder_no_other(
    tmp_path: Path, names: Names, receiver: HttpReceiver
) -> None:
    options = NotificationOptions(local_webhooks=True)
    with server(tmp_path, Clock(), options=(options,)) as api:
        channels = api.use_cases.of(Channels)
        channels.save(BOSS, "hostile", "team", ChannelRequest(address="http://silent.example/"))
        channels.save(BOSS, "q", "team", ChannelRequest(address=receiver.url))

        async def press() -> tuple[str, int]:
            pressed = [asyncio.create_task(channels.test(BOSS, "hostile", "team")) for _ in range(50)]
            await asyncio.sleep(0)
            error = (await channels.test(BOSS, "q", "team")).error
            refused = [test for test in pressed if test.done() and isinstance(test.exception(), ResourceExhausted)]
            for test in pressed:
                test.cancel()
            await asyncio.wait(pressed)
            return error, len(refused)

        assert api.client.run(press) == ("", 48)
        answer = api.client.run(channels.test, BOSS, "q", "team")
        assert answer.error == ""


@pytest.fixture
def receiver() -> Iterator[HttpReceiver]:
    with http_receiver() as receiver:
        yield receiver
