"""Attachments: commands that run beside a replica's program, and connections to its ports.

    command line ── WebSocket ──▶ server ◀── WebSocket ── agent ── command or port of the replica

`POST /trainyard/v1/projects/P/jobs/J/attachments` creates one. The agent of the replica finds its `AttachOrder` in the
answer of its next sync, and connects. Client and agent each open one WebSocket for each stream of the attachment, with
the same number; the server connects the two and passes on what comes, without reading it.

Stream 0 is the attachment itself: that of a command has its input and output. That of ports has requests to connect
(`Control.connect`), each answered by a stream of its own. The attachment ends with stream 0.

A binary message is a channel (one byte) and data; a text message is a `Control` as JSON.
"""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from trainyard_protocol.message import Many, Wire

Channel = Literal[0, 1, 2]
STDIN: Channel = 0
STDOUT: Channel = 1
STDERR: Channel = 2

CHUNK = 64 * 2**10
"""Bytes of data in a message at most."""

MOST_MESSAGE = 2 * CHUNK
"""Bytes of a message at most."""

MOST_COMMAND = 64 * 2**10
"""Characters of a command with its arguments."""

MOST_PORTS = 16

ENDED = 1000
"""The close code of a stream that has ended by itself."""

REFUSED = 4000
"""The close code of what cannot be done. The reason is a sentence, cut to MOST_REASON bytes."""

LOST = 1012
"""The close code of a server that stops."""

MOST_REASON = 120


def _short(command: tuple[str, ...]) -> tuple[str, ...]:
    if sum(map(len, command)) > MOST_COMMAND:
        raise ValueError(f"may have {MOST_COMMAND} characters with its arguments")
    if any("\0" in word for word in command):
        raise ValueError("may not have NUL characters")
    return command


Command = Annotated[Many[str], Field(max_length=1000), AfterValidator(_short)]
Port = Annotated[int, Field(ge=1, le=65535)]


class TerminalSize(Wire):
    rows: int = Field(24, ge=1, le=1000)
    columns: int = Field(80, ge=1, le=1000)


class Terminal(TerminalSize):
    """The terminal of the caller. `kind` is its TERM."""

    kind: str = Field("xterm-256color", max_length=64, pattern=r"^[A-Za-z0-9_.+-]*$")


class AttachRequest(Wire):
    """A request for an attachment: of a `command`, with or without a terminal, or of `ports`. `task` is that of the
    replica; "": the primary."""

    task: str = Field("", max_length=64)
    command: Command = ()
    terminal: Terminal | None = None
    ports: Annotated[Many[Port], Field(max_length=MOST_PORTS)] = ()


class AttachReceipt(Wire):
    """An attachment that was created: its id, and the replica that it is of."""

    id: str
    task: str
    agent: str


class AttachOrder(AttachRequest):
    """An attachment that the agent of the replica should serve until it is ordered no more."""

    id: str
    run_id: str


class Control(Wire):
    """A message of a stream beside data. From the client: `resize`, `eof` of the input; on stream 0 of ports
    `connect`, the number of a stream and its port. From the agent: `exit_code` of a command, the last message."""

    resize: TerminalSize | None = None
    eof: bool = False
    connect: tuple[int, int] | None = None
    exit_code: int | None = None

    def text(self) -> str:
        return self.model_dump_json(exclude_defaults=True)


def close_reason(text: str) -> str:
    """The text as the reason of a close frame, which is short."""
    return text.encode()[:MOST_REASON].decode(errors="ignore")
