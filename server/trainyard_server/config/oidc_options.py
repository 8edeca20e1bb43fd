"""Settings of single sign-on: the OpenID Connect issuer whose accounts may sign in to the dashboard."""

import ipaddress
from dataclasses import dataclass, field
from urllib.parse import SplitResult, urlsplit

from trainyard_protocol.errors import InvalidArgument
from trainyard_server.domain.access.route_access import OIDC_CALLBACK


@dataclass(frozen=True, slots=True)
class OidcOptions:
    """An issuer, and this server as its client. Without a secret the server is a public client; PKCE
    is always used."""

    issuer: str
    client_id: str
    public_url: str
    client_secret: str = field(default="", repr=False)
    name_claim: str = "email"

    @property
    def redirect_url(self) -> str:
        return self.public_url + OIDC_CALLBACK

    @property
    def public_host(self) -> str:
        return urlsplit(self.public_url).hostname or ""

    @property
    def issuer_host(self) -> str:
        return urlsplit(self.issuer).netloc


def checked_oidc(
    issuer: str, client_id: str, public_url: str, client_secret: str = "", name_claim: str = "email"
) -> OidcOptions:
    """Raises InvalidArgument for an address that cannot be used."""
    if not client_id or not public_url:
        raise InvalidArgument("--oidc-issuer needs --oidc-client-id and --public-url.")
    if not (name_claim.isascii() and name_claim.isprintable() and name_claim.strip()):
        raise InvalidArgument(
            f"--oidc-name-claim is the name of a claim, such as email; this is {name_claim!r}."
        )
    _checked_url("--oidc-issuer", issuer)
    public = _checked_url("--public-url", public_url)
    if public.path not in ("", "/"):
        raise InvalidArgument(
            f"--public-url is an address without a path, such as https://trains.example.com; this is {public_url!r}."
        )
    return OidcOptions(issuer, client_id, public_url.rstrip("/"), client_secret, name_claim)


def _checked_url(option: str, text: str) -> SplitResult:
    """The parts of an https address, or of an http one on this machine. Raises InvalidArgument."""
    try:
        parts = urlsplit(text)
        usable = (
            bool(parts.hostname)
            and parts.port != 0
            and not (parts.query or parts.fragment or "@" in parts.netloc)
        )
    except ValueError:
        usable = False
    if not usable or not (
        parts.scheme == "https" or (parts.scheme == "http" and _is_local(parts.hostname or ""))
    ):
        raise InvalidArgument(
            f"{option} is an https:// address without a query, or an http:// address of this machine; this is {text!r}."
        )
    return parts


def _is_local(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
