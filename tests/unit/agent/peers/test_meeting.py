"""The machines of a gang meet at the ports of their replicas, over real sockets, and leave these free."""

import asyncio
import socket

import psutil
import pytest

from support.addresses import free_ports
from trainyard_agent.peers.meeting import Meeting, Unreached
from trainyard_agent.peers.reach import Reach, address_towards, own_address

MINE = ["master-replica-0"]


def addresses(*hosts: str, role: str = "worker") -> dict[str, str]:
    return {
        f"{role}-replica-{n}": f"{host}:{port}"
        for n, (host, port) in enumerate(zip(hosts, free_ports(len(hosts)), strict=True))
    }


async def test_parts_that_have_met_leave_their_ports_free_at_once() -> None:
    mine, last = addresses("127.0.0.2", role="master"), addresses("127.0.0.4", role="evaluator")
    others = addresses("127.0.0.3", "127.0.0.3")
    parts = [(Meeting("g"), part) for part in (mine, others, last)]
    for here, part in parts:
        await here.open(part.values())
    for here, part in parts[:2]:
        rest = (mine | others | last).items() - part.items()
        await here.reach(part, dict(rest))
    (first, _), (second, _), (third, _) = parts
    await asyncio.wait_for(third.was_reached(3), 10)
    waiting = asyncio.gather(first.was_reached(3), second.was_reached(2))
    await asyncio.sleep(0)
    assert not waiting.done(), "the third has not connected"
    await third.reach(last, mine | others)
    await asyncio.wait_for(waiting, 10)
    for address in (*mine.values(), *others.values(), *last.values()):
        host, _, port = address.rpartition(":")
        with socket.socket() as program:  # without SO_REUSEADDR, as gRPC's servers may be
            program.bind((host, int(port)))
            program.listen()


async def test_port_without_a_listener_is_named_with_its_replica() -> None:
    others, there = addresses("127.0.0.3"), addresses("127.0.0.4", role="evaluator")
    meeting_there = Meeting("g")
    await meeting_there.open(there.values())
    with pytest.raises(Unreached, match=r"worker-replica-0 at 127\.0\.0\.3:\d+: .*[Cc]onnect") as failure:
        await Meeting("g").reach(MINE, others | there)
    assert list(failure.value.tasks) == ["worker-replica-0"]
    await meeting_there.close()


async def test_caller_that_is_no_part_of_the_gang_counts_for_nothing() -> None:
    mine = addresses("127.0.0.2")
    here, strange = Meeting("g"), Meeting("another gang")
    await here.open(mine.values())
    with pytest.raises(Unreached):
        await strange.reach(MINE, mine)
    host, _, port = mine["worker-replica-0"].rpartition(":")
    for line in (b"x" * 1000 + b"\n", b"g worker-replica-1 many\n", b"\n", b""):
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(line)
        writer.close()
    waiting = asyncio.create_task(here.was_reached(1))
    await strange.close()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.shield(waiting), 0.2)
    await Meeting("g").reach(MINE, mine)
    await asyncio.wait_for(waiting, 10)


async def test_taken_port_frees_the_others() -> None:
    with socket.create_server(("127.0.0.2", 0)) as taken:
        free = addresses("127.0.0.2")
        opened = Meeting("g")
        with pytest.raises(OSError, match="in use"):
            await opened.open([*free.values(), f"127.0.0.2:{taken.getsockname()[1]}"])
        await opened.open(free.values())
        await opened.close()


def test_server_on_this_machine_gives_no_address() -> None:
    assert address_towards("http://127.0.0.1:8470") == ""
    assert address_towards("http://no-such-host.invalid") == ""


def test_address_has_an_interface_and_is_one_of_this_machine() -> None:
    interface = Reach("127.0.0.1").interface
    assert "127.0.0.1" in [address.address for address in psutil.net_if_addrs()[interface]]
    assert Reach().interface == ""
    for text in ("127.0.0.1", "0.0.0.0", "203.0.113.7"):
        with pytest.raises(ValueError, match="is not an address at which other machines"):
            own_address(text)
    with pytest.raises(ValueError, match="must be an IP address"):
        own_address("box-1")
