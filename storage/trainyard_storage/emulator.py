"""Storage emulator (gs://) of the local service: `python -m trainyard_storage.emulator`."""

import argparse
import logging
import sys
from collections.abc import Sequence
from pathlib import Path

from trainyard_protocol.errors import FailedPrecondition
from trainyard_protocol.net import loopback
from trainyard_protocol.net.private_files import read_token_file
from trainyard_storage.api import LocalBackend, StorageApi
from trainyard_storage.app import StorageApp
from trainyard_storage.remote import RemoteStorage
from trainyard_storage.server import BACKLOG, StorageServer
from trainyard_storage.tensorflow import TensorFlowProxy

_log = logging.getLogger(__name__)


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until SIGTERM. Returns 1 at once if the port or a directory is in use."""
    options = _parser().parse_args(argv)
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    secret, proxy = read_token_file(options.secret_file).token, None
    try:
        if options.names_dir is not None:
            proxy = TensorFlowProxy(options.names_dir, secret)
    except (OSError, ValueError) as error:
        _log.error("cannot use the directory %s: %s", options.names_dir, getattr(error, "strerror", None) or error)
        return 1
    try:
        listeners = loopback.listen(loopback.IPV4, options.port, BACKLOG)  # and ::1: `localhost` is either
        server = RemoteStorage(options.server, by_proxies=False) if options.server else None
        app = StorageApp(LocalBackend(StorageApi(options.data_dir), server), secret, proxy=proxy)
    except FailedPrecondition as error:
        _log.error("%s", error.message)
        return 1
    except OSError as error:
        reason = error.strerror or error
        _log.error("cannot use the directory %s, perhaps because another process does: %s", options.data_dir, reason)
        return 1
    StorageServer(app, options.port, for_containers=options.for_containers).run(listeners)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m trainyard_storage.emulator")
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--secret-file", type=Path, required=True, help="the first part of the path of every URL")
    parser.add_argument("--names-dir", type=Path, help="with the certificate for TensorFlow")
    parser.add_argument("--server", help="the server whose MLflow tracking is to be reached here too")
    parser.add_argument(
        "--for-containers", nargs="?", const="", metavar="ADDRESS", help="of Docker's bridge; default: by the engine"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
