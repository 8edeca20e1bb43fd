"""Use case of agents: report their runs, and get their orders."""

import asyncio
import hashlib
import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from datetime import datetime
from typing import Any

from anyio import to_thread

from trainyard_protocol.wire.agents import CLUSTER
from trainyard_protocol.wire.peers import HOLD_S, SHORT_LEASE_S, Peers
from trainyard_protocol.wire.sync import SyncRequest, SyncResponse
from trainyard_server.context import Backend
from trainyard_server.control.controller import Controller
from trainyard_server.control.snapshots import live_runs
from trainyard_server.domain.access.agent_keys import AgentKey
from trainyard_server.domain.access.run_tokens import RunTokens
from trainyard_server.domain.reports import bounded_sync
from trainyard_server.services.agents import run_reports
from trainyard_server.services.agents.agent_keys import actor_of, check_key
from trainyard_server.services.agents.agents import unique_name
from trainyard_server.services.agents.orders import Orders
from trainyard_server.services.agents.run_reports import Changed
from trainyard_server.services.agents.unchanged_calls import UnchangedCalls, confirms, left_runs
from trainyard_server.storage.db.base.agent_models import AgentRow
from trainyard_server.storage.db.queries.reader import AgentHeartbeat, Reader
from trainyard_server.storage.db.repository import Writer
from trainyard_server.storage.events.notifier import AGENTS_TOPIC, agent_topic, job_topic
from trainyard_server.storage.membership import Offer

logger = logging.getLogger(__name__)

_COMPANY = 2
"""The number of live agents from which one more or less changes no lease."""


class AgentSync:
    def __init__(self, backend: Backend, controller: Controller, run_tokens: RunTokens, peer_key: str) -> None:
        """`peer_key` signs what agents say to each other."""
        self._backend = backend
        self._peer_key = peer_key
        self._orders = Orders(backend, run_tokens)
        self._controller = controller
        self._newest: dict[str, object] = {}  # the latest sync of each agent
        self._unchanged = UnchangedCalls(backend)

    async def sync(
        self,
        request: SyncRequest,
        key: AgentKey,
        still_connected: Callable[[], Awaitable[bool]] | None = None,
        name: str = "",
    ) -> SyncResponse:
        """Record the report, then answer with every run that the agent should have.

        While the agent has seen that answer, it is held for up to `wait_s`; a change or a newer sync of the same
        agent ends the wait. `still_connected` is whether the caller still waits. `name`: that of the agent's token, if
        it has one, in place of the agent's own. Raises PermissionDenied for the id of
        an agent with another key.
        """
        if name:
            agent = request.agent.model_copy(update={"name": name})
            request = request.model_copy(update={"agent": agent})
        received_at = self._backend.clock()
        request = bounded_sync(request, received_at)
        agent_id = request.agent.agent_id
        if not self._unchanged.counts(request, key):
            await to_thread.run_sync(self.record, request, key)
        me = self._newest[agent_id] = object()
        notifier = self._backend.notifier
        with notifier.subscribe(agent_topic(agent_id)) as events:
            notifier.publish(agent_topic(agent_id))
            reported = frozenset(report.run_id for report in request.runs)
            answer = await self._answer(agent_id, reported, request.reaches)
            deadline = asyncio.get_running_loop().time() + min(request.wait_s, self._longest_hold_s(agent_id, answer))
            while answer.version == request.seen and not notifier.closed:
                if self._newest.get(agent_id) is not me:
                    if still_connected is not None and await still_connected():
                        logger.warning(
                            "Two agents use the id %s (%s) at the same time: each needs a state directory of its own.",
                            agent_id,
                            request.agent.name,
                        )
                    break
                left = deadline - asyncio.get_running_loop().time()
                if left <= 0:
                    break
                if await events.wait(left):
                    answer = await self._answer(agent_id, reported, request.reaches)
            if self._newest.get(agent_id) is me:
                del self._newest[agent_id]
            if not self._backend.store.exclusive or not self._has_lease_of(agent_id, answer):
                await to_thread.run_sync(self._answered, agent_id, answer)
            times = {"received_at": received_at, "answered_at": self._backend.clock()}
            return answer.model_copy(update=times | {"stamp": self._backend.membership.stamp(agent_id)})

    def record(self, request: SyncRequest, key: AgentKey) -> None:
        """Store the agent's report of itself and its runs. An old report changes nothing. Raises PermissionDenied."""
        backend, now, changed = self._backend, self._backend.clock(), Changed()
        with backend.store.write() as writer:
            agent_row = writer.agent(request.agent.agent_id)
            check_key(writer, agent_row, key)
            given_name, name = request.agent.name, unique_name(writer, agent_row, request.agent)
            request = request.model_copy(update={"agent": request.agent.model_copy(update={"name": name})})
            writer.act_as(actor_of(name))
            mine = {run.run_id: (run, gang) for run, gang in live_runs(writer, request.agent.agent_id)}
            left = left_runs(request, mine)
            is_changed = (
                agent_row is None
                or not backend.agent_liveness.is_alive(agent_row)
                or agent_row.info != request.agent.model_dump(mode="json")
                or agent_row.orphaned_runs != left
            )
            heartbeat = self._save_agent(writer, agent_row, request, key, left, given_name, now, changed)
            for report in request.runs:
                if report.run_id in mine:  # one that has ended is not in the answer, so the agent drops it
                    run_reports.record(writer, *mine[report.run_id], report, request, now, changed)
            others = self._others_alive(writer, request.agent.agent_id, _COMPANY) if is_changed else ()
            moves = self._controller.move(writer, changed.moved | changed.measured, now, changed.measured)
        backend.agent_liveness.silent_s(heartbeat)  # now, however late the next tick is
        self._unchanged.written(request.agent.agent_id)
        if is_changed:
            # The lease of one that was alone changes.
            alone = others if len(others) < _COMPANY else ()
            backend.notifier.publish(AGENTS_TOPIC, *map(agent_topic, alone))
        topics = map(job_topic, changed.moved | changed.measured)
        backend.notifier.publish(*topics, *map(agent_topic, changed.partners))
        self._controller.follow(moves)
        if moves.releases or moves.left or is_changed:
            self._controller.schedule()

    def _save_agent(
        self,
        writer: Writer,
        before: AgentRow | None,
        request: SyncRequest,
        key: AgentKey,
        left: Sequence[str],
        given_name: str,
        now: datetime,
        changed: Changed,
    ) -> AgentHeartbeat:
        """Store the agent's report of itself: the lease that it has, errors of its devices, and that it is back after a
        restore. `before`: its row; `left`: runs that go on there although they have ended."""
        agent, was_restored = request.agent, before is not None and before.restored
        has_last = self._backend.membership.called(agent.agent_id, agent.peer_address, request.echo, agent.group)
        stored = () if before is None else before.info.get("device_errors", ())
        errors = [error for error in agent.device_errors if error not in stored]
        heartbeat = writer.save_agent(agent, key.digest, left, now, given_name)
        if errors and (row := writer.agent(agent.agent_id)) is not None:
            writer.set_draining(row, True, f"its GPUs have errors: {'; '.join(errors)}")
        if before is not None and confirms(before, request, has_last=has_last):
            writer.confirm_lease(before)
        if before is not None and was_restored:
            reported = {report.run_id for report in request.runs}
            changed.moved |= self._controller.restoration.called(writer, before, reported, now)
        return heartbeat

    async def _answer(self, agent_id: str, reported: Collection[str], reaches: Collection[str]) -> SyncResponse:
        """The answer: of an agent that has nothing to do, without another thread, which takes as long as that."""
        if not reported and self._backend.store.is_idle(agent_id):
            return self.answer(agent_id, reported, reaches)
        return await to_thread.run_sync(self.answer, agent_id, reported, reaches)

    def answer(self, agent_id: str, reported: Collection[str] = (), reaches: Collection[str] = ()) -> SyncResponse:
        """All orders for the agent, which has reported these runs and reaches these agents. The agent of a machine gets
        a lease while another agent could run its jobs: the short one where it reaches a majority. That of an engine
        gets none: its runs outlive it, and never start elsewhere because it is silent.

        A run that ended without the agent, because it was silent for too long, is ordered to stop until its logs are
        here.
        """
        backend = self._backend
        with backend.store.live() as reader:
            me = reader.agent(agent_id)
            fronts_engine = me is not None and me.info.get("kind") == CLUSTER
            offer, lease_s = Offer({}, ()), None
            if me is not None and not fronts_engine and not backend.settings.long_leases:
                offer = backend.membership.offer(agent_id, reaches, me.sent_members)
            if offer.members:
                lease_s = SHORT_LEASE_S
            elif not fronts_engine and (self._others_alive(reader, agent_id, 1) or reader.others_run(agent_id)):
                lease_s = backend.settings.lease_s
            addresses = offer.addresses or ({} if fronts_engine else backend.membership.neighbours(agent_id))
            peers = Peers(key=self._peer_key, addresses=addresses) if addresses else None
            # An engine's objects, which others may read, have no token of the run.
            orders = self._orders.of(reader, agent_id, reported, with_tokens=not fronts_engine)
            further: dict[str, Any] = {}
            for capability in backend.capabilities if orders else ():
                if capability.agent_orders is not None:
                    further |= capability.agent_orders(reader, agent_id, backend.clock())
        answer = SyncResponse(version="", lease_s=lease_s, runs=orders, members=offer.members, peers=peers, **further)
        if me is not None:
            answer = answer.model_copy(update={"name": str(me.info["name"])})
        version = hashlib.sha256(answer.model_dump_json().encode()).hexdigest()[:16]
        return answer.model_copy(update={"version": version})

    def _longest_hold_s(self, agent_id: str, answer: SyncResponse) -> float:
        """Seconds for which the answer to the agent is held: few where it may get the short lease."""
        settings = self._backend.settings
        votes = answer.peers is not None and not settings.long_leases and self._backend.membership.may_vote(agent_id)
        return min(settings.longest_hold_s, HOLD_S) if votes else settings.longest_hold_s

    def _others_alive(self, reader: Reader, agent_id: str, enough: int) -> Sequence[str]:
        """Agents other than this one that are alive: `enough` or more of them, or all. Those that were heartbeat last
        mostly are enough, and no other row is read then."""
        liveness, alive = self._backend.agent_liveness, list[str]()
        for agents in (liveness.newest, None):
            rows = reader.heartbeats(agents)
            alive = [row.agent_id for row in rows if row.agent_id != agent_id and liveness.is_alive(row)]
            if len(alive) >= enough:
                break
        return alive

    def _has_lease_of(self, agent_id: str, answer: SyncResponse) -> bool:
        """Whether the agent has the lease of the answer, and no other."""
        with self._backend.store.live() as reader:
            agent = reader.agent(agent_id)
            sent = answer.lease_s, list(answer.members)
            return agent is None or (agent.is_confirmed and (agent.sent_lease_s, agent.sent_members) == sent)

    def _answered(self, agent_id: str, answer: SyncResponse) -> None:
        """Record the lease of the answer.

        No lease holds at once. A lease holds when the agent has acknowledged it: the answer may be lost, and an agent
        without a lease stops nothing. Until then the longer of two leases holds.
        """
        if self._has_lease_of(agent_id, answer):
            return
        with self._backend.store.write() as writer:
            agent = writer.agent(agent_id)
            if agent is None:
                return
            lease_s = _longer(agent.lease_s, answer.lease_s)
            if bool(answer.members) != bool(agent.sent_members):
                by = f"by a majority of {len(answer.members)} and the server" if answer.members else "for itself"
                logger.info("Agent %s has its lease %s: %s s", agent.info["name"], by, answer.lease_s)
            writer.answer_agent(agent, answer.version, answer.lease_s, answer.members, self._backend.clock())
            writer.grant_lease(agent, lease_s)
        # Record the heartbeat now, however late the next tick is.
        self._backend.agent_liveness.silent_s(agent)


def _longer(held_s: float | None, sent_s: float | None) -> float | None:
    """The lease that holds until the agent has acknowledged an answer; None: no limit."""
    return None if held_s is None or sent_s is None else max(held_s, sent_s)
