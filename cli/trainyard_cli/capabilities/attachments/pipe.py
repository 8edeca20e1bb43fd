"""A command in a replica with pipes: what it reads is sent, and what it writes is read, by this program."""

from typing import TYPE_CHECKING

from websockets.exceptions import ConnectionClosed

from trainyard_cli.capabilities.attachments.command import why_closed
from trainyard_protocol.errors import Unavailable
from trainyard_protocol.wire.attachments import CHUNK, REFUSED, STDERR, STDIN, AttachRequest, Control

if TYPE_CHECKING:
    from trainyard_cli.client import Client

_MOST_STDERR = 4096


class PipedCommand:
    """The input and output of a command in the primary, for one thread. `close` ends it."""

    def __init__(self, client: "Client", job: str, command: tuple[str, ...]) -> None:
        """Raises FailedPrecondition for a job that does not run, and what else the server refuses."""
        self._client = client
        self._id = client.attach(job, AttachRequest(command=command)).id
        self._connection = client.open_stream(self._id, 0)
        self._output = bytearray()
        self._stderr = bytearray()

    def send(self, data: bytes) -> None:
        """Send input. Raises Unavailable once the command or the connection has ended."""
        try:
            for at in range(0, len(data), CHUNK):
                self._connection.send(bytes((STDIN,)) + data[at : at + CHUNK])
        except ConnectionClosed as error:
            raise Unavailable(self._why("")) from error

    def read_line(self, most_bytes: int) -> bytes:
        """The next line of the output. Raises Unavailable where the command ends before, or the line is longer."""
        at = 0
        while (end := self._output.find(b"\n", at)) < 0:
            at = len(self._output)
            if at > most_bytes:
                raise Unavailable("The command in the replica answers with something else than was expected.")
            self._receive()
        line = bytes(self._output[: end + 1])
        del self._output[: end + 1]
        return line

    def close(self) -> None:
        self._connection.close()
        self._client.detach(self._id)

    def _receive(self) -> None:
        try:
            message = self._connection.recv()
        except ConnectionClosed as error:
            raise Unavailable(self._why("")) from error
        if isinstance(message, bytes):
            if message[0] == STDERR:
                self._stderr += message[1:]
                del self._stderr[:-_MOST_STDERR]
            else:
                self._output += message[1:]
        elif (code := Control.model_validate_json(message).exit_code) is not None:
            raise Unavailable(self._why(f"The command in the replica ended with exit code {code}."))

    def _why(self, ended: str) -> str:
        lines = self._stderr.decode(errors="replace").strip().splitlines()
        if lines:
            return f"{ended} Its last line: {lines[-1]}".strip()
        if self._connection.close_code == REFUSED and self._connection.close_reason:
            return self._connection.close_reason
        return ended or why_closed(self._connection)
