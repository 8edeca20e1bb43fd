"""Delivery of notifications by HTTP: a POST of JSON, to addresses that may be reached."""

import asyncio
import json
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

import trainyard_protocol
from trainyard_protocol.job.keys.notifications import Transport
from trainyard_protocol.net.trust import client_context
from trainyard_server.capabilities.notifications import content as contents
from trainyard_server.capabilities.notifications import delivery
from trainyard_server.capabilities.notifications.resolver import Resolver, own_addresses

if TYPE_CHECKING:
    import httpx

_TIMEOUT_S = 10.0
_USER_AGENT = f"trainyard/{trainyard_protocol.__version__}"
_LONGEST_CAUSE = 300

NOT_REACHED = "it could not be reached (name, address, port, certificate or time): the server's log has the cause"
"""The reason of every failure without an answer: whoever may submit jobs learns nothing about ports of the network."""


@dataclass(frozen=True, slots=True)
class DeliveryFailure:
    """A failed attempt. `of_receiver`: other notifications would fail, too. `is_final`: no further attempt is made.
    `cause`: the exact reason, for operators, where `reason` does not have it."""

    reason: str
    of_receiver: bool = True
    is_final: bool = False
    cause: str = ""


class RefusedAddress(Exception):
    """An address that webhooks may not reach. The message says which."""


class Webhooks:
    def __init__(self, key: bytes, *, allow_local: bool) -> None:
        self._key = key
        self._allow_local = allow_local
        self._resolver = Resolver()

    async def send(
        self, url: str, transport: Transport, project: str, identifier: str, content: Mapping[str, Any], now: datetime
    ) -> DeliveryFailure | None:
        """POST a notification. Redirects are not followed; of the answer only the status is read."""
        import httpx  # a tenth of a second, and many servers never need it

        payload = contents.slack(content) if transport is Transport.SLACK else {"id": identifier, **content}
        body = json.dumps(payload, ensure_ascii=False).encode("utf-8", "replace")
        key = delivery.signing_key(self._key, project)
        headers = {
            "Content-Type": "application/json",
            "User-Agent": _USER_AGENT,
            **delivery.signed_headers(key, identifier, int(now.timestamp()), body),
        }
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                status = await self._post(project, httpx.URL(url), headers, body)
        except TimeoutError as error:
            return _not_reached(str(error) or f"no answer within {_TIMEOUT_S:g} s")
        except (RefusedAddress, httpx.HTTPError, httpx.InvalidURL, OSError, UnicodeError) as error:
            return _not_reached(str(error) or type(error).__name__)
        if 200 <= status < 300:
            return None
        return DeliveryFailure(
            f"it answered {status}", of_receiver=delivery.is_of_receiver(status), is_final=delivery.is_final(status)
        )

    async def _post(self, project: str, url: "httpx.URL", headers: Mapping[str, str], body: bytes) -> int:
        import httpx

        extensions = {}
        is_proxied = url.scheme in urllib.request.getproxies() and not urllib.request.proxy_bypass(url.host)
        if not is_proxied:
            # The address that was checked, and not what the name has a moment later.
            host = url.host
            headers = {**headers, "Host": url.netloc.decode()}
            extensions = {"sni_hostname": host}
            port = url.port or (443 if url.scheme == "https" else 80)
            url = url.copy_with(host=await self._address(project, host, port))
        client = httpx.AsyncClient(timeout=_TIMEOUT_S, verify=client_context(), trust_env=is_proxied)
        async with client, client.stream("POST", url, headers=headers, content=body, extensions=extensions) as answer:
            return answer.status_code

    async def _address(self, project: str, host: str, port: int) -> str:
        """An IP address of the host. Raises RefusedAddress, OSError, UnicodeError."""
        addresses = await self._resolver.addresses(project, host, port)
        if not self._allow_local:
            _check_allowed(host, addresses)
        return addresses[0]


def _check_allowed(host: str, addresses: Sequence[str]) -> None:
    """Raises RefusedAddress if any is refused."""
    own = own_addresses()
    for address in addresses:
        kind = delivery.refused_address(address, own)
        if kind:
            raise RefusedAddress(
                f"{host} is {address} ({kind}), where webhooks do not go: the operator allows it by --local-webhooks"
            )


def _not_reached(cause: str) -> DeliveryFailure:
    return DeliveryFailure(NOT_REACHED, cause=" ".join(cause.split())[:_LONGEST_CAUSE])
