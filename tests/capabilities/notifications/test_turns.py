"""Turns of notifications: which attempts begin next."""

from collections import Counter

from trainyard_server.capabilities.notifications.turns import AT_RECEIVER, IN_FLIGHT, OF_PROJECT, Lane, next_lanes


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
