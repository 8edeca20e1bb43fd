"""Words of attached shells: forwarded ports, and the sequence that ends one."""

import click
import pytest

from trainyard_cli.capabilities.attachments.command import EscapeSequence
from trainyard_cli.capabilities.attachments.commands import _forward
from trainyard_cli.capabilities.attachments.forwarding import Forward


@pytest.mark.parametrize(
    ("text", "forward"),
    [("8888", Forward(8888, 8888)), ("16006:6006", Forward(16006, 6006)), (":80", Forward(0, 80)),
     ("0:80", Forward(0, 80))],
)  # fmt: skip
def test_port_is_read_as_kubectl_does(text: str, forward: Forward) -> None:
    assert _forward(text) == forward


@pytest.mark.parametrize("text", ["", "0", "65536", "80:", "70000:80", "a:80", "80:81:82", "-1"])
def test_port_that_is_none_says_what_is_allowed(text: str) -> None:
    with pytest.raises(click.UsageError, match="PORT, LOCAL:PORT, or :PORT"):
        _forward(text)


@pytest.mark.parametrize(
    ("typed", "found"),
    [
        ([b"~."], True),
        ([b"ls\r~."], True),
        ([b"ls\r", b"~", b"."], True),
        ([b"\n~."], True),
        ([b"a~."], False),
        ([b"\r~~."], False),
        ([b"\r~x."], False),
        ([b"\r.~"], False),
    ],
)
def test_escape_sequence_is_found_at_the_beginning_of_a_line_alone(typed: list[bytes], found: bool) -> None:
    sequence = EscapeSequence()
    assert any(sequence.found(data) for data in typed) is found
