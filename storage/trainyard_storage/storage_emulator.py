"""Storage emulator (gs://) of the local service: `python -m trainyard_storage.storage_emulator`.

It listens on loopback, which containers cannot reach, and on the same port of this machine's address on Docker's
bridge. Other machines cannot reach either.
"""

import argparse
import asyncio
import json
import logging
import os
import signal
import socket
import sys
from collections.abc import Sequence
from contextlib import closing
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

from trainyard_protocol.errors import FailedPrecondition
from trainyard_protocol.net import loopback
from trainyard_protocol.net.private_files import read_token_file
from trainyard_storage.storage_api import StorageApi
from trainyard_storage.storage_http import StorageServer
from trainyard_storage.tensorflow_front import TensorFlowFront

_ENGINE, _ENGINE_TIMEOUT_S = "unix:///var/run/docker.sock", 10.0
_POLL_S = 2.0  # interval of checks for the bridge
_BACKLOG = 256

_log = logging.getLogger(__name__)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m trainyard_storage.storage_emulator")
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument(
        "--secret-file", type=Path, required=True, help="the first part of the path of every URL"
    )
    parser.add_argument("--names-dir", type=Path, help="with the certificate for TensorFlow")
    parser.add_argument("--for-containers", action="store_true")
    options = parser.parse_args(argv)
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    secret, front = read_token_file(options.secret_file).token, None
    try:
        if options.names_dir is not None:
            front = TensorFlowFront(options.names_dir, secret)
    except (OSError, ValueError) as error:
        _log.error("cannot use the directory %s: %s", options.names_dir, error)
        return 1
    serving = _serve(options.data_dir, options.port, secret, front, options.for_containers)
    return 0 if asyncio.run(serving) else 1


def bridge_address() -> str:
    """This machine's address on the container engine's bridge; "" without an engine or a bridge."""
    scheme, _, path = os.environ.get("DOCKER_HOST", _ENGINE).partition("://")
    if scheme != "unix":
        return ""
    try:
        options = _bridge(path)["Options"]
    except (OSError, HTTPException, ValueError, KeyError):
        return ""
    import psutil

    addresses = psutil.net_if_addrs().get(options.get("com.docker.network.bridge.name", ""), [])
    return next((address.address for address in addresses if address.family == socket.AF_INET), "")


def _bridge(engine: str) -> dict[str, Any]:
    """Properties of the bridge, by the engine at that socket. Raises OSError, HTTPException, ValueError."""
    with closing(HTTPConnection("engine")) as connection:
        connection.sock = socket.socket(socket.AF_UNIX)
        connection.sock.settimeout(_ENGINE_TIMEOUT_S)
        connection.sock.connect(engine)
        connection.request("GET", "/networks/bridge")
        answer = connection.getresponse()
        if answer.status != HTTPStatus.OK:
            raise HTTPException(f"{answer.status} {answer.reason}")
        found: dict[str, Any] = json.loads(answer.read())
        return found


async def _serve(
    data_dir: Path, port: int, secret: str, front: TensorFlowFront | None, for_containers: bool
) -> bool:
    """Serve until SIGTERM. Returns False at once if the port is in use."""
    try:
        storage = StorageServer(StorageApi(data_dir), secret, front=front)
    except OSError as error:
        _log.error("cannot use the directory %s, perhaps because another process does: %s", data_dir, error)
        return False
    try:
        servers = await serve_loopback(storage, port)
    except FailedPrecondition as error:
        _log.error("%s", error.message)
        await storage.close()
        return False
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    containers = asyncio.create_task(serve_containers(storage, port)) if for_containers else None
    await stop.wait()
    for server in servers:
        server.close()
    if containers is not None:
        containers.cancel()
    await storage.close()
    return True


async def serve_loopback(storage: StorageServer, port: int) -> list[asyncio.Server]:
    """Listen on both addresses of loopback: `localhost` is either. Raises FailedPrecondition."""
    listeners = loopback.listen(loopback.IPV4, port, _BACKLOG)
    return [
        await asyncio.start_server(storage.serve, sock=listener, backlog=_BACKLOG) for listener in listeners
    ]


async def serve_containers(storage: StorageServer, port: int) -> None:
    """Listen on the bridge too, as soon as it exists; its address can change with the engine."""
    while True:
        address = await asyncio.to_thread(bridge_address)
        if address:
            storage.add_name(address)
            try:
                server = await asyncio.start_server(storage.serve, address, port, backlog=_BACKLOG)
            except OSError as error:
                _log.warning("cannot listen for containers (gs://) on %s:%d: %s", address, port, error)
            else:
                async with server:
                    # "": the engine may be restarting
                    while await asyncio.to_thread(bridge_address) in (address, ""):
                        await asyncio.sleep(_POLL_S)
        await asyncio.sleep(_POLL_S)


if __name__ == "__main__":
    sys.exit(main())
