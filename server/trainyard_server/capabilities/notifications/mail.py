"""Delivery of notifications by mail, through the operator's mail server."""

import asyncio
import smtplib
import ssl
from collections.abc import Mapping
from datetime import datetime
from email.message import EmailMessage
from email.utils import format_datetime
from functools import partial
from typing import Any

from trainyard_protocol.net.trust import client_context
from trainyard_server.capabilities.notifications import content as contents
from trainyard_server.capabilities.notifications.options import SECURITIES, NotificationOptions
from trainyard_server.capabilities.notifications.threads import FairThreads
from trainyard_server.capabilities.notifications.webhooks import DeliveryFailure

_TIMEOUT_S = 20.0
"""The longest step of a conversation with the mail server."""

_LONGEST_S = 60.0
_MAILS, _MAILS_OF_PROJECT = 8, 2

_WITHOUT_TLS = (530, 538)
"""Answers of mail servers that want TLS first (RFC 3207, RFC 4954)."""


class Mail:
    def __init__(self, options: NotificationOptions) -> None:
        self._options = options
        self._threads = FairThreads("mail", _MAILS, _MAILS_OF_PROJECT)

    async def send(
        self, address: str, project: str, identifier: str, content: Mapping[str, Any], now: datetime
    ) -> DeliveryFailure | None:
        """Send a mail. Its Message-ID is the notification's, the same at each attempt."""
        try:
            async with asyncio.timeout(_LONGEST_S):
                return await self._threads.run(project, partial(self._send, address, identifier, content, now))
        except TimeoutError:
            return DeliveryFailure(f"the mail server did not accept it within {_LONGEST_S:g} s")

    def _send(self, address: str, identifier: str, content: Mapping[str, Any], now: datetime) -> DeliveryFailure | None:
        if not self._options.smtp:
            return DeliveryFailure("this server has no mail server: its operator gives --smtp")
        message = EmailMessage()
        message["From"] = self._options.sender
        message["To"] = address
        message["Subject"] = contents.subject(content)
        message["Date"] = format_datetime(now)
        message["Message-ID"] = f"<{identifier}@{self._options.sender.rpartition('@')[2]}>"
        message["Auto-Submitted"] = "auto-generated"  # RFC 3834: no answers to it
        message.set_content(contents.text(content).encode("utf-8", "replace").decode())
        try:
            with self._connected() as server:
                server.send_message(message)
        except smtplib.SMTPRecipientsRefused as error:
            code, reason = next(iter(error.recipients.values()))
            return DeliveryFailure(
                f"the mail server refused {address}: {_text(code, reason)}", of_receiver=False, is_final=code >= 500
            )
        except smtplib.SMTPResponseException as error:
            needs_tls = error.smtp_code in _WITHOUT_TLS and self._options.security == "none"
            hint = self._security_hint() if needs_tls else ""
            return DeliveryFailure(f"the mail server answered {_text(error.smtp_code, error.smtp_error)}{hint}")
        except ssl.SSLCertVerificationError as error:
            return DeliveryFailure(f"the certificate of the mail server {self._options.smtp} is not accepted: {error}")
        except (smtplib.SMTPException, OSError) as error:
            cause = str(error).rstrip(".")
            return DeliveryFailure(
                f"the mail server {self._options.smtp} cannot be used: {cause}{self._security_hint()}"
            )
        return None

    def _security_hint(self) -> str:
        allowed = SECURITIES[:-1] if self._options.password else SECURITIES
        return f" (--smtp-security is {self._options.security}; allowed: {', '.join(allowed)})"

    def _connected(self) -> smtplib.SMTP:
        options = self._options
        server: smtplib.SMTP
        if options.security == "tls":
            server = smtplib.SMTP_SSL(options.host, options.port, timeout=_TIMEOUT_S, context=client_context())
        else:
            server = smtplib.SMTP(options.host, options.port, timeout=_TIMEOUT_S)
        try:
            if options.security == "starttls":
                server.starttls(context=client_context())
            if options.user:
                server.login(options.user, options.password)
        except BaseException:
            server.close()
            raise
        return server


def _text(code: int, reason: bytes | str) -> str:
    written = reason.decode("utf-8", "replace") if isinstance(reason, bytes) else reason
    return f"{code} {' '.join(written.split())[:200]}"
