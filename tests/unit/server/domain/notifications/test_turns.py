"""Turns of notifications: which attempts begin next."""

from collections import Counter

from trainyard_server.capabilities.notifications.turns import (
    AT_RECEIVER,
    IN_FLIGHT,
    OF_PROJECT,
    Lane,
    next_lanes,
    receiver_of,
)


def lanes(project: str, count: int, receiver: str = "") -> list[Lane]:
    """Lanes to one receiver, or each to another."""
    return [Lane(project, receiver or f"{project}{number}:80", f"{project}/{number}") for number in range(count)]


def test_attempts_begin_within_every_bound_and_of_each_project() -> None:
    many = [lane for number in range(9) for lane in lanes(f"p{number}", 20)]
    one_project, one_receiver = lanes("p", 300), [*lanes("p", 8, "r:80"), *lanes("q", 8, "r:80")]
    counts = {
        "one project": (Counter(lane.project for lane in next_lanes(one_project, (), ())), {"p": OF_PROJECT}),
        "beside others": (Counter(lane.project for lane in next_lanes(one_project, lanes("p", 5, "r"), ())), {"p": 3}),
        "one receiver": (Counter(lane.receiver for lane in next_lanes(one_receiver, (), ())), {"r:80": AT_RECEIVER}),
        "its projects": (Counter(lane.project for lane in next_lanes(one_receiver, (), ())), {"p": 2, "q": 2}),
        "in all": (Counter(len(next_lanes(many, (), ())) * "x"), {"x": IN_FLIGHT}),
        "none is free": (Counter(next_lanes(one_project, lanes("q", IN_FLIGHT), ())), {}),
        "each project": (Counter(len({lane.project for lane in next_lanes(many, (), ())}) * "x"), {"x": 9}),
    }
    assert [name for name, (found, expected) in counts.items() if found != expected] == []


def test_turns_go_to_the_project_with_fewest_attempts_then_to_the_least_recently_served() -> None:
    waiting = [lane for project in "abcd" for lane in lanes(project, 1)]
    busy = [*lanes("other", IN_FLIGHT - 3), *lanes("a", 1, "r")]
    begun = next_lanes(waiting, busy, ("c", "b"))
    assert [lane.project for lane in begun] == ["d", "c"]


def test_receiver_is_the_host_with_its_port_or_the_domain() -> None:
    expected = {
        "http://Chat.example.com/a": "chat.example.com:80",
        "https://chat.example.com./b?c": "chat.example.com:443",
        "https://chat.example.com:8443": "chat.example.com:8443",
        "http://[fd00::1]:8080/": "fd00::1:8080",
        "ana@Example.com": "example.com",
    }
    assert {address: receiver_of(address) for address in expected} == expected
