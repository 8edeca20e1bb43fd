"""One-shot chores of docker-compose.yml: `python3 chores.py CHORE ARGUMENT...`

    tokens DIRECTORY ROLE...   create a token for each role in DIRECTORY/ROLE, unless it exists
    reach ADDRESS...           exit code 0 if all answer: http://..., unix:///... for a container engine, or
                               tcp://HOST:PORT for a connection alone

Only the standard library; proxies are not asked.
"""

import http.client
import os
import secrets
import socket
import sys
import urllib.request
from pathlib import Path

_PATIENCE_S = 5.0


def main(words: list[str]) -> int:
    match words:
        case ["tokens", directory, *roles]:
            for role in roles:
                make_token(Path(directory) / role)
        case ["reach", *addresses] if addresses:
            return reach(addresses)
        case _:
            print(__doc__, file=sys.stderr)
            return 2
    return 0


def make_token(path: Path) -> None:
    """Readable by its owner alone; never half of one."""
    if path.is_file() and path.stat().st_size:
        return
    draft = path.with_name(f".{path.name}")
    draft.unlink(missing_ok=True)
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(secrets.token_urlsafe(32) + "\n")
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)


def reach(addresses: list[str]) -> int:
    for address in addresses:
        try:
            if address.startswith("unix://"):
                _ping(address.removeprefix("unix://"))
            elif address.startswith("tcp://"):
                host, _, port = address.removeprefix("tcp://").rpartition(":")
                socket.create_connection((host.strip("[]"), int(port)), timeout=_PATIENCE_S).close()
            else:
                _open(address)
        except (OSError, ValueError, http.client.HTTPException) as error:
            print(f"{address}: {error}", file=sys.stderr)
            return 1
    return 0


def _open(address: str) -> None:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(address, timeout=_PATIENCE_S):
        pass


def _ping(path: str) -> None:
    connection = http.client.HTTPConnection("engine", timeout=_PATIENCE_S)
    connection.sock = socket.socket(socket.AF_UNIX)
    connection.sock.settimeout(_PATIENCE_S)
    connection.sock.connect(path)
    connection.request("GET", "/_ping")
    status = connection.getresponse().status
    connection.close()
    if status != http.client.OK:
        raise OSError(f"the engine answers {status}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
