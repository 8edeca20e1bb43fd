"""Discovery document of the v1 API, open to all: Google's clients build themselves from it.

    discovery.build("ml", "v1", discoveryServiceUrl="https://HOST/$discovery/rest?version={apiVersion}", ...)

`discovery.json` has the names, types and paths of Google's own document for what is here; `secrets`, `env`,
`validateOnly` and the conditions of a parameter are ours. Source: https://developers.google.com/discovery/v1/reference/apis
"""

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from fastapi import Request

import trainyard_protocol
from trainyard_protocol.errors import NotFound, shown
from trainyard_server.api.routing import Router
from trainyard_server.domain.access.route_access import Access

router = Router()


@router.get("/$discovery/rest", Access.NOBODY, "the discovery document of `/v1`")
def of_the_service(request: Request, version: str = "v1") -> dict[str, Any]:
    return _document("ml", version, str(request.base_url))


@router.get("/discovery/v1/apis/{api}/{version}/rest", Access.NOBODY, "the same, at its older path")
def of_an_api(request: Request, api: str, version: str) -> dict[str, Any]:
    return _document(api, version, str(request.base_url))


@cache
def discovery_document() -> Mapping[str, Any]:
    """The document, apart from the server's address."""
    document = json.loads(Path(__file__).with_name("discovery.json").read_text(encoding="utf-8"))
    return {**document, "revision": trainyard_protocol.__version__}


def _document(api: str, version: str, address: str) -> dict[str, Any]:
    """The document for clients that reached the server at this address. Raises NotFound."""
    if (api, version) != ("ml", "v1"):
        raise NotFound(f"There is no API {shown(f'{api}:{version}')!r} here; there is ml:v1.")
    return {**discovery_document(), "rootUrl": address, "baseUrl": address}
