"""A command that connects its input and output to a port of where it runs: how a port is reached in a place that the
agent can only run commands in."""

from typing import Final

_CONNECT: Final = """
import os, socket, sys, threading
problem = None
for host in ("127.0.0.1", "::1"):
    try:
        connection = socket.create_connection((host, int(sys.argv[1])), 10)
        break
    except OSError as error:
        problem = problem or error
else:
    sys.exit("Nothing listens at port %s (%s)." % (sys.argv[1], problem.strerror or problem))
connection.settimeout(None)
def send():
    while True:
        data = os.read(0, 65536)
        if not data:
            break
        connection.sendall(data)
    connection.shutdown(socket.SHUT_WR)
threading.Thread(target=send, daemon=True).start()
with os.fdopen(1, "wb", 0) as output:
    while True:
        data = connection.recv(65536)
        if not data:
            break
        while data:
            data = data[output.write(data):]
    os._exit(0)
"""
"""A program for any Python 3."""

_CHOOSE: Final = """
for python in python3 python; do
    if command -v "$python" >/dev/null 2>&1; then exec "$python" -I -c "$2" "$1"; fi
done
if command -v socat >/dev/null 2>&1; then exec socat - "TCP:127.0.0.1:$1"; fi
if command -v nc >/dev/null 2>&1; then exec nc 127.0.0.1 "$1"; fi
echo "A port is reached by python3, socat or nc of the image, and this one has none of them." >&2
exit 127
"""


def port_command(port: int, python: str = "") -> tuple[str, ...]:
    """The command. `python` is an interpreter that is there; "": the image has one, or another program that can."""
    if python:
        return (python, "-I", "-S", "-c", _CONNECT, str(port))
    return ("sh", "-c", _CHOOSE, "sh", str(port), _CONNECT)
