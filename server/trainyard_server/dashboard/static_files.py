"""Style sheets, scripts and icons: ours, and those of libraries from their installed packages.

Their path has a digest of all of them, so browsers cache them for ever and fetch a new version at once.
"""

import gzip
import hashlib
import mimetypes
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

from fastapi import Request, Response

from trainyard_protocol.errors import NotFound
from trainyard_server.api.routing import Router
from trainyard_server.dashboard.resources import folders
from trainyard_server.domain.access.route_access import Access

# A plug-in of Metaflow, of which no Python is imported, nor any package.
_UPLOT = "card_uplot/plugins/cards/uplot/uplot"
_SWAGGER_UI = "fastapi_swagger.resources"
_VENDOR = {
    "vendor/uPlot.js": ("metaflow_extensions", f"{_UPLOT}/uPlot.iife.min.js"),
    "vendor/uPlot.css": ("metaflow_extensions", f"{_UPLOT}/uPlot.min.css"),
    "vendor/swagger-ui.js": (_SWAGGER_UI, "swagger-ui-bundle.js"),
    "vendor/swagger-ui.css": (_SWAGGER_UI, "swagger-ui.css"),
}
_IMMUTABLE = "public, max-age=31536000, immutable"
_COMPRESSED = ("text/", "image/svg+xml")

router = Router()


@router.get("/static/{version}/{name:path}", Access.NOBODY, "scripts and style sheets of the pages")
def static_file(version: str, name: str, request: Request) -> Response:
    """The current file, also at the path of another version; only that of this version may be cached."""
    content, media_type = _read(name)
    headers = {"Cache-Control": _IMMUTABLE if version == static_version() else "no-cache", "Vary": "Accept-Encoding"}
    if media_type.startswith(_COMPRESSED) and "gzip" in request.headers.get("accept-encoding", ""):
        headers["Content-Encoding"] = "gzip"
        content = _compressed(name)
    return Response(content, media_type=media_type, headers=headers)


@cache
def static_version() -> str:
    """Digest of all static files."""
    digest = hashlib.sha256()
    for name in sorted(_files()):
        digest.update(name.encode() + b"\0")
        digest.update(hashlib.sha256(_read(name)[0]).digest())
    return digest.hexdigest()[:12]


def static_url(name: str) -> str:
    return f"/static/{static_version()}/{name}"


@cache
def _files() -> Mapping[str, Traversable]:
    """All static files, by their names."""
    vendor = {name: files(package).joinpath(path) for name, (package, path) in _VENDOR.items()}
    ours = {
        (Path(prefix) / path.relative_to(folder)).as_posix(): path
        for prefix, folder in folders("static").items()
        for path in folder.rglob("*")
        if path.is_file()
    }
    return {**ours, **vendor}


@cache
def _read(name: str) -> tuple[bytes, str]:
    """Content and media type. Raises NotFound for every other name."""
    file = _files().get(name)
    if file is None:
        raise NotFound(f"There is nothing at /static/{name}.")
    media_type = "text/javascript" if name.endswith(".js") else mimetypes.guess_type(name)[0]
    return file.read_bytes(), media_type or "application/octet-stream"


@cache
def _compressed(name: str) -> bytes:
    return gzip.compress(_read(name)[0], mtime=0)
