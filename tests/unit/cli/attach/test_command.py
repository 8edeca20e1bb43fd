import pytest

from trainyard_cli.attach.command import EscapeSequence


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
