"""Delivery of notifications by mail, through the operator's mail server."""

import smtplib
from collections.abc import Mapping
from datetime import datetime
from email.message import EmailMessage
from email.utils import format_datetime
from typing import Any

from trainyard_protocol.net.trust import client_context
from trainyard_server.config.notification_options import NotificationOptions
from trainyard_server.domain.notifications import content as contents
from trainyard_server.services.notifications.webhooks import DeliveryFailure

_TIMEOUT_S = 20.0


class Mail:
    def __init__(self, options: NotificationOptions) -> None:
        self._options = options

    def send(self, address: str, identifier: str, content: Mapping[str, Any], now: datetime) -> DeliveryFailure | None:
        """Send a mail, which blocks. Its Message-ID is the notification's, the same at each attempt."""
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
            return DeliveryFailure(f"the mail server answered {_text(error.smtp_code, error.smtp_error)}")
        except (smtplib.SMTPException, OSError) as error:
            return DeliveryFailure(f"the mail server {self._options.smtp} cannot be used: {error}")
        return None

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
