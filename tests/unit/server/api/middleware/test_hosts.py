"""Host names that the server answers to."""

from trainyard_server.api.middleware.hosts import answers_to

NAMES = ("Trains.Example.com", "train_yard", "*.wild.example")


OWN = (
    *("127.0.0.1", "127.0.0.1:8470", "10.0.0.5:80", "[::1]", "[::1]:8470"),
    *("localhost", "LOCALHOST:8470", "trainyard.localhost:8470", "a.b.localhost.", "localhost.:8470"),
    *("trains.example.com", "TRAINS.example.com.:443", "train_yard:8470", "localhost:", "any.WILD.example"),
)
FOREIGN = (
    *("", ":8470", "evil.example", "evil.example:8470", "localhost.evil.example", "evillocalhost"),
    *("127.0.0.1.nip.io", "x.trains.example.com", "wild.example", "a.b.wild.example"),
    *("trains.example.com.evil.example", "trains.example.com@evil.example"),
    *("localhost:8470:8470", "localhost:x", "[::1", "[evil.example]", "::1", "localhost/"),
    *("local\u212aost", "localhost\n", "localhost:8470, evil.example", "localhost..", "a" * 300),
)


def test_addresses_and_own_names_are_answered_to_and_no_others() -> None:
    assert [header for header in OWN if not answers_to(header, NAMES)] == []
    assert [header for header in FOREIGN if answers_to(header, NAMES)] == []
