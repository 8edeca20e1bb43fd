"""A model of the leases that agents keep by a majority: the rules of both sides, on a network that loses, delays and
repeats what is sent, with clocks that differ, and with servers and agents that start again, join, leave, are removed
and lose their files. No replica may be alive when its run starts elsewhere, a server that is away stops nothing that it
did not have to, and machines that come and go leave the others their short leases.
"""

import heapq
import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

import pytest

from trainyard_agent.host.clock import ManualClock
from trainyard_agent.lease import lease_file
from trainyard_agent.lease.lease import Lease
from trainyard_agent.lease.majority import Majority
from trainyard_protocol.wire.peers import HOLD_S, SHORT_LEASE_S, Peers
from trainyard_protocol.wire.sync import SyncResponse
from trainyard_server.storage.agent_liveness import AgentLiveness
from trainyard_server.storage.db.base.agent_models import AgentRow
from trainyard_server.storage.membership import Membership

GRACE_S, LONG_LEASE_S, CALL_S, RATE = 30.0, 600.0, 25.0, 1e-3
SERVER = "server"


class Skewed(ManualClock):
    """A clock of a rate and an origin of its own."""

    def __init__(self, world: "World") -> None:
        super().__init__()
        self._world, self._rate = world, 1 + world.random.uniform(-RATE, RATE)
        self._origin = world.random.uniform(0, 1e6)

    def monotonic(self) -> float:
        return self._origin + self._rate * self._world.now


@dataclass
class Request:
    """A sync, as far as leases go."""

    agent: str
    sent: float
    seen: str
    echo: str
    reaches: tuple[str, ...]


@dataclass
class World:
    """`cut` are the pairs of machines that do not reach each other."""

    random: Random
    directory: Path
    now: float = 0.0
    cut: set[frozenset[str]] = field(default_factory=set)
    slow_s: float = 0.0
    events: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    number: Iterator[int] = field(default_factory=itertools.count)

    def at(self, in_s: float, do: Callable[[], None]) -> None:
        heapq.heappush(self.events, (self.now + in_s, next(self.number), do))

    def send(self, one: str, other: str, do: Callable[[], None]) -> None:
        """Deliver a message, now or later, unless the way is cut when it is sent. It may come twice."""
        if frozenset((one, other)) in self.cut:
            return
        self.at(self.random.expovariate(1) * self.slow_s + 0.01, do)
        if self.random.random() < 0.03:
            self.at(self.random.uniform(0, 60), do)

    def run(self, for_s: float) -> None:
        until = self.now + for_s
        while self.events and self.events[0][0] <= until:
            self.now, _, do = heapq.heappop(self.events)
            do()
        self.now = until


class AgentModel:
    """An agent and its watchdog, whose replicas ignore SIGTERM."""

    def __init__(self, world: World, name: str, server: "ServerModel", has_address: bool, starts: bool) -> None:
        self.world, self.name, self.server = world, name, server
        self.address = f"{name}:1" if has_address else ""
        self.clock = Skewed(world)
        self.path = world.directory / f"{name}.json"
        self.life, self.is_up, self.alive = 0, False, True
        if starts:
            self.start()
        self._watch()

    def start(self) -> None:
        self.life += 1
        self.is_up, self.seen, self.echo = True, "", ""
        self.lease = Lease(self.clock, self.path)
        self.majority = Majority(self.name, self.lease, self.clock)
        self._call()
        self._ask()

    def kill(self) -> None:
        self.is_up, self.life = False, self.life + 1

    def leave(self) -> None:
        """Stop in good order: no replica and no lease is left, nor anything that an agent remembers."""
        self.kill()
        self.alive = False
        self.path.unlink(missing_ok=True)

    def _call(self) -> None:
        request = Request(self.name, self.clock.monotonic(), self.seen, self.echo, self.majority.reached)
        self.calling = request
        self.world.send(self.name, SERVER, lambda: self.server.receive(request, self))
        self.world.at(CALL_S, lambda: self._call_again(request))

    def _call_again(self, request: Request) -> None:
        if self.is_up and self.calling is request:
            self._call()

    def receive(self, request: Request, answer: SyncResponse) -> None:
        if not self.is_up or self.calling is not request or self.echo == answer.stamp:
            return
        self.majority.answered(request.sent, answer)
        self.lease.renew(request.sent, answer.lease_s)
        self.seen, self.echo = answer.version, answer.stamp
        self.alive = True  # it may have a run again
        self.world.at(self.world.random.expovariate(1) * 0.1, lambda: self._call_again(request))

    def _ask(self) -> None:
        life, asked_at = self.life, self.clock.monotonic()
        for peer in self.majority.questions():
            self.world.send(self.name, peer, lambda peer=peer: self._ask_one(peer, life, asked_at))  # type: ignore[misc]

        def again() -> None:
            if self.life == life:
                self.majority.keep()
                self._ask()

        self.world.at(1.0, again)

    def _ask_one(self, peer: str, life: int, asked_at: float) -> None:
        there = self.server.agents[peer]
        if not there.is_up or there.majority.peers is None:
            return
        word = there.majority.word

        def deliver() -> None:
            if self.life == life:
                self.majority.record_word(peer, word, asked_at)

        self.world.send(peer, self.name, deliver)

    def _watch(self) -> None:
        """The watchdog kills what has not ended, with or without an agent."""
        grant = lease_file.read(self.path)
        if grant is not None and self.clock.monotonic() >= grant.kill_at(GRACE_S) + grant.watchdog_delay_s:
            self.alive = False
        self.world.at(0.5, self._watch)


def put(row: AgentRow, values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        setattr(row, name, value)


class ServerModel:
    """A server process and its database."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.agents: dict[str, AgentModel] = {}
        self.rows: dict[str, AgentRow] = {}
        self.violations: list[str] = []
        self.lost: list[tuple[float, str]] = []
        self.is_up, self.life = False, 0
        self.start()
        self._tick()

    def start(self) -> None:
        self.life, self.is_up = self.life + 1, True
        clock = Skewed(self.world)
        self.membership = Membership(clock.monotonic)
        self.liveness = AgentLiveness(lambda: datetime.now(UTC), clock.monotonic, 30.0)

    def receive(self, request: Request, agent: AgentModel) -> None:
        if not self.is_up:
            return
        name, has_last = request.agent, self.membership.called(request.agent, agent.address, request.echo)
        if name not in self.rows:
            self.rows[name] = AgentRow(
                agent_id=name, heartbeats=0, sent_version="", lease_s=None, sent_members=[], member_lists=[]
            )
        row = self.rows[name]
        row.last_seen = datetime.now(UTC)
        row.heartbeats += 1
        self.liveness.silent_s(row)
        if row.sent_version == request.seen and (has_last or not row.has_members):
            put(row, row.with_confirmed_answer())
        life = self.life
        self.world.at(self.world.random.uniform(0, HOLD_S), lambda: self._answer(request, row, agent, life))

    def _answer(self, request: Request, row: AgentRow, agent: AgentModel, life: int) -> None:
        if self.life != life or not self.is_up:
            return
        has_company = any(self.liveness.is_alive(other) for other in self.rows.values() if other is not row)
        offer = self.membership.offer(row.agent_id, request.reaches, row.sent_members)
        members = offer.members if has_company else ()
        lease_s = SHORT_LEASE_S if members else LONG_LEASE_S if has_company else None
        peers = Peers(key="", addresses=offer.addresses) if has_company and offer.addresses else None
        version = f"{lease_s} {members} {peers and peers.addresses}"
        put(row, row.with_answer(version, lease_s, members))
        row.lease_s = None if row.lease_s is None or lease_s is None else max(row.lease_s, lease_s)
        row.heartbeats += 1
        answer = SyncResponse(version=version, lease_s=lease_s, runs=(), members=members, peers=peers)
        answer = answer.model_copy(update={"stamp": self.membership.stamp(row.agent_id)})
        self.world.send(SERVER, row.agent_id, lambda: agent.receive(request, answer))

    def _tick(self) -> None:
        for row in self.rows.values() if self.is_up else ():
            silent_s, agent = self.liveness.silent_s(row), self.agents[row.agent_id]
            if row.lease_s is None:
                continue
            if silent_s > self.membership.lease_ends_s(row.agent_id, row.lease_s, row.member_lists):
                self.lost.append((self.world.now, row.agent_id))
                if agent.alive:
                    self.violations.append(f"{row.agent_id} is alive at {self.world.now:.0f} s")
        self.world.at(1.0, self._tick)


def machines(seed: int, directory: Path, count: int = 0) -> tuple[World, ServerModel, list[str]]:
    """Machines with addresses, `count` of them; 0: a random number, of which some may have none."""
    world = World(Random(seed), directory)
    server = ServerModel(world)
    names = [f"agent{number}" for number in range(count or world.random.choice((2, 3, 3, 4, 5, 6)))]
    for number, name in enumerate(names):
        has_address = bool(count) or world.random.random() < 0.9
        starts = bool(count) or number < 2 or world.random.random() < 0.6
        server.agents[name] = AgentModel(world, name, server, has_address, starts)
    return world, server, names


def disturb(world: World, server: ServerModel, names: list[str]) -> None:
    random, places = world.random, [SERVER, *names]
    pairs = [frozenset(pair) for pair in itertools.combinations(places, 2)]
    what = random.random()
    if what < 0.55:  # a partition, perhaps just after machines have joined
        here = {place for place in places if random.random() < 0.5}
        joins = what < 0.2
        for agent in server.agents.values() if joins else ():
            if not agent.is_up:
                agent.start()

        def cut() -> None:
            world.cut = {pair for pair in pairs if len(pair & here) == 1}

        world.at(random.uniform(0, 8) * joins, cut)
    elif what < 0.65:
        world.cut = set(random.sample(pairs, random.randint(0, len(pairs))))
    elif what < 0.7:
        world.cut = set()
    elif what < 0.9:
        change_members(server, random.choice(names), random)
    elif server.is_up:
        server.is_up = False
    else:
        server.start()
    world.slow_s = random.choice((0.0, 0.0, 0.3, 2.0, 10.0))


def change_members(server: ServerModel, name: str, random: Random) -> None:
    agent = server.agents[name]
    what = random.random()
    if what < 0.4:
        (agent.kill if agent.is_up else agent.start)()
    elif what < 0.8:
        agent.leave()
        if what < 0.6:
            agent.start()
    else:
        server.membership.forget(name)


LONG = [pytest.param(first, marks=pytest.mark.long) for first in range(50, 500, 50)]


@pytest.mark.parametrize("first", [0, *LONG])
def test_nothing_runs_twice_whatever_the_network_does(first: int, tmp_path: Path) -> None:
    losses = 0
    for seed in range(first, first + 50):
        (directory := tmp_path / str(seed)).mkdir()
        world, server, names = machines(seed, directory)
        world.run(130)
        for _ in range(world.random.randint(2, 8)):
            disturb(world, server, names)
            world.run(world.random.choice((3, 10, 20, 40, 60, 90, 200)))
        world.cut, world.slow_s = set(), 0.0
        world.run(200)
        assert not server.violations, (seed, server.violations)
        losses += len(server.lost)
    assert losses, "these histories lose machines"


def test_lost_machine_of_three_is_given_up_within_a_minute(tmp_path: Path) -> None:
    world, server, names = machines(1, tmp_path, 3)
    world.run(200)
    assert {row.lease_s for row in server.rows.values()} == {SHORT_LEASE_S}
    world.cut = {frozenset((names[0], other)) for other in (SERVER, *names[1:])}
    world.run(50)
    assert {name for _, name in server.lost} == {names[0]}
    assert server.agents[names[1]].alive


@pytest.mark.parametrize("seed", range(8))
def test_machines_that_come_and_go_leave_the_others_their_short_leases(seed: int, tmp_path: Path) -> None:
    world, server, names = machines(seed, tmp_path, 4)
    world.run(200)
    short = set(names)
    for _ in range(6):
        agent = server.agents[name := world.random.choice(names)]
        if agent.is_up and len(short - {name}) >= 2:
            short.discard(name)
            agent.leave()
            if world.random.random() < 0.5:
                server.membership.forget(name)
        elif agent.is_up:  # its machine starts again
            agent.kill()
            world.run(world.random.uniform(0, 8))
            agent.start()
        else:
            agent.start()
        for _ in range(world.random.randint(25, 150)):
            world.run(1)
            assert {server.rows[other].lease_s for other in short} == {SHORT_LEASE_S}, (world.now, short, name)
            short |= {other for other in names if server.agents[other].is_up and has_short_lease(server, other)}
    lost = world.random.choice(sorted(short))
    world.cut = {frozenset((lost, other)) for other in (SERVER, *names)}
    world.run(50)
    assert {name for _, name in server.lost} >= {lost}
    assert not server.violations


def has_short_lease(server: ServerModel, name: str) -> bool:
    """Whether it has a short lease, and counts for others."""
    row = server.rows[name]
    return row.lease_s == SHORT_LEASE_S and row.has_members and server.membership.has_majority([name], "")


@pytest.mark.parametrize("count", [2, 3, 5])
def test_server_that_is_away_for_an_hour_stops_nothing(count: int, tmp_path: Path) -> None:
    world, server, names = machines(2, tmp_path, count)
    world.run(200)
    assert {row.lease_s for row in server.rows.values()} == {SHORT_LEASE_S}
    server.is_up = False
    world.run(3600)
    assert all(server.agents[name].alive for name in names)
    server.start()
    world.run(200)
    assert all(server.agents[name].alive for name in names)
    assert not server.lost
