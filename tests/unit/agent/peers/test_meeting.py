"""The machines of a gang meet at the ports of their replicas, over real sockets, and leave these free."""

import asyncio
import socket

import pytest

from support.addresses import free_ports
from trainyard_agent.peers import meeting
from trainyard_agent.peers.meeting import Meeting, Unreached


def addresses(*hosts: str) -> dict[str, str]:
    return {
        f"worker-replica-{n}": f"{host}:{port}"
        for n, (host, port) in enumerate(zip(hosts, free_ports(len(hosts)), strict=True))
    }


async def test_parts_that_listen_are_reached_and_their_ports_are_free_at_once_afterwards() -> None:
    mine, others = addresses("127.0.0.2"), addresses("127.0.0.3", "127.0.0.3")
    here, there = Meeting("g"), Meeting("g")
    await here.open(mine.values())
    await there.open(others.values())
    await asyncio.gather(here.reach(others), there.reach(mine), here.reach(others))
    await here.close()
    await there.close()
    for address in (*mine.values(), *others.values()):
        host, _, port = address.rpartition(":")
        with socket.socket() as program:  # without SO_REUSEADDR, as gRPC's servers may be
            program.bind((host, int(port)))
            program.listen()


async def test_port_without_a_listener_is_named_with_its_replica() -> None:
    others = addresses("127.0.0.3")
    with pytest.raises(Unreached, match=r"worker-replica-0 at 127\.0\.0\.3:\d+: .*[Cc]onnect"):
        await Meeting("g").reach(others)


async def test_something_else_at_the_address_is_not_the_gang() -> None:
    others = addresses("127.0.0.3")
    stranger = Meeting("another gang")
    await stranger.open(others.values())
    with pytest.raises(Unreached, match="something else answers there"):
        await Meeting("g").reach(others)
    await stranger.close()


async def test_machine_that_does_not_answer_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meeting, "_CONNECT_S", 0.2)
    silent = socket.create_server(("127.0.0.3", 0))  # it accepts, and says nothing
    with silent, pytest.raises(Unreached, match=r"no answer within 0\.2 s"):
        await Meeting("g").reach({"master-replica-0": f"127.0.0.3:{silent.getsockname()[1]}"})


async def test_taken_port_frees_the_others() -> None:
    with socket.create_server(("127.0.0.2", 0)) as taken:
        free = addresses("127.0.0.2")
        opened = Meeting("g")
        with pytest.raises(OSError, match="in use"):
            await opened.open([*free.values(), f"127.0.0.2:{taken.getsockname()[1]}"])
        await opened.open(free.values())
        await opened.close()
