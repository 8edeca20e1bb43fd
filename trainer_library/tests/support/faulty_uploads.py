"""Uploads to a bucket that this process makes and some of which fail."""

import re
from collections.abc import Callable
from typing import Any

import pytest
import requests

NAME = re.compile(rb'"name": ?"([^"]+)"')


class FaultyUploads:
    """An upload for whose name `fault` returns a status does not reach the bucket and gets that status."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.fault: Callable[[str], int | None] = lambda _name: None
        self.refused: list[str] = []  # names of objects
        send = requests.Session.send

        def send_or_refuse(
            session: requests.Session, request: requests.PreparedRequest, **options: Any
        ) -> requests.Response:
            body = request.body if isinstance(request.body, bytes) else b""
            match = NAME.search(body[:4096]) if "/upload/" in str(request.url) else None
            status = self.fault(match[1].decode()) if match else None
            if match is None or status is None:
                return send(session, request, **options)
            self.refused.append(match[1].decode())
            response = requests.Response()
            response.status_code, response.request, response.url = status, request, str(request.url)
            return response

        monkeypatch.setattr(requests.Session, "send", send_or_refuse)
