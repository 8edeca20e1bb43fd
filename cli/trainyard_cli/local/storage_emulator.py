"""The local service's gs://: `python -m trainyard_cli.local.storage_emulator`, where containers reach it too.

The emulator listens on loopback, which a container of this machine cannot reach. So connections to the same
port at the machine's address on Docker's bridge are passed on to it. No other machine sees that address.
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
_LOOK_S = 2.0  # between two looks for the bridge
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
    logging.getLogger("gcp_storage_emulator").setLevel(logging.ERROR)  # it says every request
    return 0 if asyncio.run(_serve(options.data_dir, options.port, options.for_containers)) else 1


def bridge_address() -> str:
    """This machine's address on its engine's own bridge; "" where no engine answers, or it has none."""
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
    """Until SIGTERM. Returns False at once if the port is taken."""
    emulator = create_server(_LOOPBACK, port, data_dir=str(data_dir))._api
    emulator.daemon = True
    emulator.start()
    while not emulator.is_running.is_set():
        if not emulator.is_alive():
            return False
        await asyncio.sleep(_PAUSE_S)
    told = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, told.set)
    gate = asyncio.create_task(_gate(port)) if for_containers else None
    await told.wait()
    if gate is not None:
        gate.cancel()
    return True


async def _gate(port: int) -> None:
    """Pass on what comes in at the bridge, as soon as there is one; its address may change with the engine."""
    while True:
        address = await asyncio.to_thread(bridge_address)
        if address:
            try:
                server = await asyncio.start_server(lambda r, w: _pass_on(r, w, port), address, port)
            except OSError as error:
                _log.warning("containers cannot reach gs:// yet: %s:%d: %s", address, port, error)
            else:
                async with server:
                    while await asyncio.to_thread(bridge_address) in (address, ""):  # it may be restarting
                        await asyncio.sleep(_LOOK_S)
        await asyncio.sleep(_LOOK_S)


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, port: int) -> None:
    """One connection, both ways, until both ends have said all."""
    try:
        there_reader, there_writer = await asyncio.open_connection(_LOOPBACK, port)
    except OSError as error:
        _log.warning("the emulator does not answer: %s", error)
        writer.close()
        return
    await asyncio.gather(_copy(reader, there_writer), _copy(there_reader, writer))
    for end in (writer, there_writer):
        end.close()


async def _copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    try:
        while block := await source.read(_BLOCK):
            target.write(block)
            await target.drain()
        target.write_eof()
    except (ConnectionError, OSError):
        target.close()  # one side is gone: so is the connection


if __name__ == "__main__":
    sys.exit(main())
