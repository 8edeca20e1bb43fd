"""Receivers of notifications: an HTTP server and a mail server of this machine that answer as a test says."""

import asyncio
import json
import threading
from asyncio.base_events import Server
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email import message_from_bytes
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from aiosmtpd.controller import Controller
from aiosmtpd.smtp import SMTP, Envelope, Session


@dataclass
class HttpReceiver:
    """`answers` decides the status of each request, by its number from 0 on. `accepted` has the bodies that got a 200,
    `requests` the headers and the body of all."""

    url: str
    answers: Callable[[int], int] = lambda _: 200
    accepted: list[dict[str, Any]] = field(default_factory=list)
    requests: list[tuple[dict[str, str], bytes]] = field(default_factory=list)


@contextmanager
def http_receiver(host: str = "127.0.0.1") -> Iterator[HttpReceiver]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            with lock:
                status = receiver.answers(len(receiver.requests))
                receiver.requests.append(({name.lower(): value for name, value in self.headers.items()}, body))
                if status == 200:
                    receiver.accepted.append(json.loads(body))
            self.send_response(status)
            self.send_header("Location", receiver.url)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    lock = threading.Lock()
    with ThreadingHTTPServer((host, 0), Handler) as server:
        receiver = HttpReceiver(f"http://{host}:{server.server_port}/hook?team=1")
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield receiver
        finally:
            server.shutdown()
            thread.join()


@dataclass
class MailServer:
    """`refused` has the answers to the recipients and senders that it refuses, `slow` the domains whose recipients get
    no answer."""

    address: str
    refused: dict[str, str] = field(default_factory=dict)
    slow: set[str] = field(default_factory=set)
    mails: list[tuple[str, Message]] = field(default_factory=list)


@contextmanager
def mail_server() -> Iterator[MailServer]:
    class Handler:
        async def handle_RCPT(  # noqa: N802 - aiosmtpd's name
            self, _server: SMTP, _session: Session, envelope: Envelope, address: str, _options: list[str]
        ) -> str:
            while address.rpartition("@")[2] in mails.slow:
                await asyncio.sleep(0.02)
            if address in mails.refused:
                return mails.refused[address]
            envelope.rcpt_tos.append(address)
            return "250 OK"

        async def handle_MAIL(  # noqa: N802 - aiosmtpd's name
            self, _server: SMTP, _session: Session, envelope: Envelope, address: str, _options: list[str]
        ) -> str:
            envelope.mail_from = address
            return mails.refused.get(address, "250 OK")

        async def handle_DATA(self, _server: SMTP, _session: Session, envelope: Envelope) -> str:  # noqa: N802 - aiosmtpd's
            content = envelope.content
            assert isinstance(content, bytes)
            mails.mails += [(str(address), message_from_bytes(content)) for address in envelope.rcpt_tos]
            return "250 OK"

    class AnyPort(Controller):
        def _trigger_server(self) -> None:
            assert isinstance(self.server, Server)
            self.port = self.server.sockets[0].getsockname()[1]
            super()._trigger_server()  # type: ignore[no-untyped-call]

    mails = MailServer("")
    controller = AnyPort(Handler(), hostname="127.0.0.1", port=0)
    controller.start()
    try:
        mails.address = f"127.0.0.1:{controller.port}"
        yield mails
    finally:
        mails.slow.clear()
        controller.stop()
