"""Settings of single sign-on: the OpenID Connect issuer whose accounts may sign in to the dashboard."""

import ipaddress
from dataclasses import dataclass, replace
from urllib.parse import urlsplit

from trainyard_protocol.errors import InvalidArgument
from trainyard_protocol.settings import setting
from trainyard_server.config.settings import CapabilitySettings, Settings
from trainyard_server.config.token_files import read_secret
from trainyard_server.domain.access.route_access import OIDC_CALLBACK


def _address(text: str) -> str:
    """An https address, or an http one of this machine. Raises InvalidArgument."""
    try:
        parts = urlsplit(text)
        usable = bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable or parts.query or parts.fragment or "@" in parts.netloc or not _is_safe(parts.scheme, parts.hostname):
        raise InvalidArgument(
            f"is an https:// address without a query, or an http:// address of this machine; this is {text!r}."
        )
    return text


def _is_safe(scheme: str, host: str | None) -> bool:
    return scheme == "https" or (scheme == "http" and _is_local(host or ""))


def _is_local(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def _public_url(text: str) -> str:
    if urlsplit(_address(text)).path not in ("", "/"):
        raise InvalidArgument(f"is an address without a path, such as https://trains.example.com; this is {text!r}.")
    return text.rstrip("/")


def _claim(text: str) -> str:
    if not (text.isascii() and text.isprintable() and text.strip()):
        raise InvalidArgument(f"is the name of a claim, such as email; this is {text!r}.")
    return text


@dataclass(frozen=True, slots=True)
class OidcOptions(CapabilitySettings):
    """An issuer, and this server as its client. Without a secret the server is a public client; PKCE is always used."""

    issuer: str = setting(
        "", "the issuer, such as `https://accounts.example.com`", "--oidc-issuer", metavar="URL", read=_address
    )
    client_id: str = setting("", "this server's id at the issuer", "--oidc-client-id", metavar="ID")
    public_url: str = setting(
        "",
        "the address of the dashboard in browsers, such as `https://trains.example.com`; the issuer sends them back to "
        f"`{OIDC_CALLBACK}` below it",
        metavar="URL",
        read=_public_url,
    )
    client_secret: str = setting(
        "",
        "a file with this server's secret at the issuer",
        "--oidc-client-secret-file",
        metavar="FILE",
        read=read_secret,
        default_text="none, a public client",
        is_secret=True,
    )
    name_claim: str = setting(
        "email",
        "the claim of the ID token that is a person's name here",
        "--oidc-name-claim",
        metavar="CLAIM",
        read=_claim,
        default_text="email, which must be verified",
    )

    @property
    def redirect_url(self) -> str:
        return self.public_url + OIDC_CALLBACK

    @property
    def public_host(self) -> str:
        return urlsplit(self.public_url).hostname or ""

    @property
    def issuer_host(self) -> str:
        return urlsplit(self.issuer).netloc

    def applied(self, settings: Settings) -> Settings:
        """The settings with the public URL, whose host the server then answers to."""
        if self.issuer and not (self.client_id and self.public_url):
            raise InvalidArgument("--oidc-issuer needs --oidc-client-id and --public-url.")
        hosts = (self.public_host,) if self.issuer else ()
        return replace(settings, allowed_hosts=(*settings.allowed_hosts, *hosts), public_url=self.public_url)
