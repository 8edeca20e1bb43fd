from datetime import UTC, datetime, timedelta

from trainyard_server.services.rate_limit import Guesses

NOW = datetime(2026, 11, 21, 15, 0, tzinfo=UTC)


def test_client_that_was_wrong_too_often_waits_until_its_first_mistake_is_a_minute_old() -> None:
    guesses = Guesses(most=3)
    for second in range(3):
        assert guesses.wait_s("a", NOW + timedelta(seconds=second)) == 0
        guesses.wrong("a", NOW + timedelta(seconds=second))
    assert guesses.wait_s("a", NOW + timedelta(seconds=2)) == 58
    assert guesses.wait_s("b", NOW + timedelta(seconds=2)) == 0
    assert guesses.wait_s("a", NOW + timedelta(seconds=60)) == 0
    guesses.wrong("a", NOW + timedelta(seconds=60))
    assert guesses.wait_s("a", NOW + timedelta(seconds=60)) == 1


def test_so_many_clients_are_remembered_and_no_more() -> None:
    guesses = Guesses(most=1, clients=2)
    for client in ("a", "b", "a", "c"):
        guesses.wrong(client, NOW)
    assert {client for client in "abc" if guesses.wait_s(client, NOW)} == {"a", "c"}
