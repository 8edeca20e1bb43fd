"""Calls to an API server with a kubeconfig of the bed: paths and plain objects."""

import json
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import httpx
import yaml

Object = dict[str, Any]

_TIMEOUT_S = 30.0


class Refused(Exception):
    """An answer of the API server that is no success; `code` is that of HTTP."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code


class KubeApi:
    def __init__(self, kubeconfig: Path) -> None:
        config = yaml.safe_load(kubeconfig.read_text())
        cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
        tls = ssl.create_default_context(cafile=cluster["certificate-authority"])
        if "client-certificate" in user:
            tls.load_cert_chain(user["client-certificate"], user["client-key"])
        headers = {"Authorization": f"Bearer {user['token']}"} if "token" in user else {}
        self._client = httpx.Client(
            base_url=cluster["server"], verify=tls, headers=headers, timeout=_TIMEOUT_S, trust_env=False
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        self._client.close()

    def is_ready(self) -> bool:
        try:
            return self._client.get("/readyz").status_code == httpx.codes.OK
        except httpx.TransportError:
            return False

    def get(self, path: str, **query: str) -> Object:
        return _object(self._client.get(path, params=query))

    def text(self, path: str, **query: str) -> str:
        """An answer that is not an object: a log."""
        return _checked(self._client.get(path, params=query)).text

    def create(self, path: str, body: Object) -> Object:
        return _object(self._client.post(path, json=body))

    def patch(self, path: str, body: Object) -> Object:
        """Merge it into the object."""
        headers = {"Content-Type": "application/merge-patch+json"}
        return _object(self._client.patch(path, json=body, headers=headers))

    def delete(self, path: str, **query: str) -> None:
        _checked(self._client.delete(path, params=query))

    def follow(self, path: str, **query: str) -> Iterator[str]:
        """Lines as they come: of a watch, or of a log that is followed."""
        with self._client.stream("GET", path, params=query) as response:
            if not response.is_success:
                response.read()
            yield from _checked(response).iter_lines()


def _object(response: httpx.Response) -> Object:
    found: Object = _checked(response).json()
    return found


def _checked(response: httpx.Response) -> httpx.Response:
    if response.is_success:
        return response
    try:
        message = response.json()["message"]
    except (json.JSONDecodeError, KeyError, TypeError):
        message = response.text
    raise Refused(response.status_code, message)
