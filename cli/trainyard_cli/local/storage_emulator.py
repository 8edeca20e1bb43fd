"""Storage emulator (gs://) of the local service: `python -m trainyard_cli.local.storage_emulator`.

The emulator listens on loopback, which containers cannot reach. So connections to the same port at this machine's
address on Docker's bridge are forwarded to it. Other machines cannot reach that address.
"""

import argparse
import asyncio
import logging
import os
import signal
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

import httpx
import psutil
from gcp_storage_emulator.server import create_server

_LOOPBACK = "127.0.0.1"
_ENGINE, _ENGINE_TIMEOUT_S = "unix:///var/run/docker.sock", 10.0
_POLL_S = 2.0  # interval of checks for the bridge
_PAUSE_S = 0.02
_BLOCK = 1 << 16

_log = logging.getLogger(__name__)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m trainyard_cli.local.storage_emulator")
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--for-containers", action="store_true")
    options = parser.parse_args(argv)
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("gcp_storage_emulator").setLevel(logging.ERROR)  # it logs every request
    return 0 if asyncio.run(_serve(options.data_dir, options.port, options.for_containers)) else 1


def bridge_address() -> str:
    """This machine's address on the container engine's bridge; "" without an engine or a bridge."""
    scheme, _, path = os.environ.get("DOCKER_HOST", _ENGINE).partition("://")
    if scheme != "unix":
        return ""
    try:
        with httpx.Client(transport=httpx.HTTPTransport(uds=path), timeout=_ENGINE_TIMEOUT_S) as engine:
            options = engine.get("http://engine/networks/bridge").raise_for_status().json()["Options"]
    except (httpx.HTTPError, ValueError, KeyError):
        return ""
    addresses = psutil.net_if_addrs().get(options.get("com.docker.network.bridge.name", ""), [])
    return next((address.address for address in addresses if address.family == socket.AF_INET), "")


async def _serve(data_dir: Path, port: int, for_containers: bool) -> bool:
    """Serve until SIGTERM. Returns False at once if the port is in use."""
    emulator = create_server(_LOOPBACK, port, data_dir=str(data_dir))._api
    emulator.daemon = True
    emulator.start()
    while not emulator.is_running.is_set():
        if not emulator.is_alive():
            return False
        await asyncio.sleep(_PAUSE_S)
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    forwarder = asyncio.create_task(_forward_from_bridge(port)) if for_containers else None
    await stop.wait()
    if forwarder is not None:
        forwarder.cancel()
    return True


async def _forward_from_bridge(port: int) -> None:
    """Forward connections from the bridge, as soon as it exists; its address can change with the engine."""
    while True:
        address = await asyncio.to_thread(bridge_address)
        if address:
            try:
                server = await asyncio.start_server(lambda r, w: _relay(r, w, port), address, port)
            except OSError as error:
                _log.warning("cannot listen for containers (gs://) on %s:%d: %s", address, port, error)
            else:
                async with server:
                    while await asyncio.to_thread(bridge_address) in (
                        address,
                        "",
                    ):  # "": the engine may be restarting
                        await asyncio.sleep(_POLL_S)
        await asyncio.sleep(_POLL_S)


async def _relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, port: int) -> None:
    """Relay one connection in both directions until both ends close."""
    try:
        upstream_reader, upstream_writer = await asyncio.open_connection(_LOOPBACK, port)
    except OSError as error:
        _log.warning("cannot connect to the emulator: %s", error)
        writer.close()
        return
    await asyncio.gather(_copy(reader, upstream_writer), _copy(upstream_reader, writer))
    for end in (writer, upstream_writer):
        end.close()


async def _copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    try:
        while block := await source.read(_BLOCK):
            target.write(block)
            await target.drain()
        target.write_eof()
    except (ConnectionError, OSError):
        target.close()  # one side is gone: close both


if __name__ == "__main__":
    sys.exit(main())
