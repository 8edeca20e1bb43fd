"""Settings of notifications: the mail server, and what webhooks may reach."""

from dataclasses import dataclass

from trainyard_protocol.errors import InvalidArgument
from trainyard_protocol.settings import setting
from trainyard_server.config.settings import CapabilitySettings, Settings
from trainyard_server.config.token_files import read_secret

_PORTS = {"starttls": 587, "tls": 465, "none": 25}

SECURITIES = tuple(_PORTS)
"""Values of `--smtp-security`."""


def _mail_server(text: str) -> str:
    host, _, port = text.rpartition(":") if text.count(":") == 1 else (text, "", "")
    if not (host and host.isascii() and host.isprintable() and " " not in host and "/" not in host):
        raise InvalidArgument(f"is HOST or HOST:PORT, such as smtp.example.com:587; this is {text!r}.")
    if port and not (port.isdecimal() and 0 < int(port) < 65536):
        raise InvalidArgument(f"must have a port from 1 to 65535; this is {text!r}.")
    return text


def _sender(text: str) -> str:
    if "@" not in text or not text.isprintable():
        raise InvalidArgument(f"is a mail address, such as trainyard@example.com; this is {text!r}.")
    return text


@dataclass(frozen=True, slots=True)
class NotificationOptions(CapabilitySettings):
    """A mail server, and the addresses that webhooks may not reach."""

    smtp: str = setting(
        "",
        "the mail server that sends notifications, with its port unless it is that of `--smtp-security` (587, 465, 25)",
        metavar="HOST[:PORT]",
        read=_mail_server,
        default_text="none, so no mail is sent",
    )
    sender: str = setting(
        "", "the sender of mails, such as `trainyard@example.com`", "--smtp-from", metavar="ADDRESS", read=_sender
    )
    user: str = setting("", "the user name at the mail server", "--smtp-user", metavar="NAME")
    password: str = setting(
        "",
        "a file with the password of `--smtp-user`",
        "--smtp-password-file",
        metavar="FILE",
        read=read_secret,
        default_text="none",
        is_secret=True,
    )
    security: str = setting(
        "starttls",
        "TLS after the first line, TLS from the start, or none, which is for a mail server of this machine",
        "--smtp-security",
        choices=SECURITIES,
    )
    local_webhooks: bool = setting(
        False,
        "webhooks may also go to the addresses of this machine, where its services are, and to loopback, link-local, "
        "reserved and metadata addresses, where a cloud has credentials. With `--one-user` they may, unless others "
        "reach the server",
    )

    @property
    def host(self) -> str:
        return self.smtp.rpartition(":")[0] if self.smtp.count(":") == 1 else self.smtp

    @property
    def port(self) -> int:
        return int(self.smtp.rpartition(":")[2]) if self.smtp.count(":") == 1 else _PORTS[self.security]

    def applied(self, settings: Settings) -> Settings:
        """The settings as they are. Raises InvalidArgument for a mail server without what it needs."""
        if self.smtp and not self.sender:
            raise InvalidArgument("--smtp needs --smtp-from, the sender of the mails.")
        if bool(self.user) != bool(self.password):
            raise InvalidArgument("--smtp-user and --smtp-password-file need each other.")
        if self.password and self.security == "none":
            raise InvalidArgument("A password needs TLS: --smtp-security starttls or tls.")
        return settings
