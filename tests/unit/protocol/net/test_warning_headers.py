"""Warning headers: what is written is read again, and nothing else."""

from trainyard_protocol.net.warning_headers import warning_value, warnings_of


def test_text_of_a_warning_is_read_as_it_was_written() -> None:
    text = 'Did you mean "vision"? C:\\data'
    others = ['199 proxy "stale"', '299 a "escape \x1b[2J"', '299 a "caf\xe9"', "299 no text", '299 a "two", 299 b "c"']
    assert warnings_of([warning_value(text), *others]) == [text]
