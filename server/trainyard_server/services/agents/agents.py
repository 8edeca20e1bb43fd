"""Use cases of operators: which agents are given runs, and which are forgotten."""

from trainyard_protocol.answers.agents import AgentRef, AgentsView, free_name, matching_ids
from trainyard_protocol.errors import FailedPrecondition, NotFound
from trainyard_protocol.wire.agents import AgentInfo
from trainyard_server.context import Backend
from trainyard_server.control.controller import Controller
from trainyard_server.domain.access.permissions import Caller, Role
from trainyard_server.storage.db.base.agent_models import AgentRow
from trainyard_server.storage.db.queries.reader import Reader
from trainyard_server.storage.db.tables import people
from trainyard_server.storage.events.notifier import AGENTS_TOPIC, agent_topic

_MOST_NAMED = 3


def name_of(caller: Caller) -> str:
    """The name that the token gives its agent; "" for the token of all agents."""
    return caller.name if caller.name != Role.AGENT else ""


class Agents:
    def __init__(self, backend: Backend, controller: Controller) -> None:
        self._backend = backend
        self._controller = controller

    def drain(self, agent: str, draining: bool) -> AgentsView:
        """Give an agent no new run, or again. Raises NotFound, FailedPrecondition as `found_agent` does."""
        with self._backend.store.write() as writer:
            row = found_agent(writer, agent)
            writer.set_draining(row, draining)
            view = view_of(writer, row)
        self._publish(view)
        return view

    def remove(self, caller: Caller, agent: str) -> AgentsView:
        """Forget an agent, and revoke the tokens of its name once no other agent has joined under that.

        Its row stays, for the runs that it had. Raises NotFound, FailedPrecondition as `found_agent` does, and while it
        has an unfinished run. That of an agent that has not called since a backup was restored is lost.
        """
        now = self._backend.clock()
        lost = set[int]()
        with self._backend.store.write() as writer:
            row = found_agent(writer, agent)
            view = view_of(writer, row)
            if row.restored:
                lost = self._controller.restoration.lose_runs(writer, row, now)
            else:
                self._check_unused(writer, row)
            writer.remove_agent(row, now)
            name = given_name_of(row)
            if name not in {given_name_of(other) for other in writer.agents()}:
                people.revoke_agent_tokens(writer, name, caller.name, now)
        for key in lost:
            self._controller.advance(key)
        self._publish(view)
        self._backend.notifier.publish(*map(agent_topic, self._backend.membership.forget(row.agent_id)))
        return view

    def _check_unused(self, reader: Reader, row: AgentRow) -> None:
        """Raises FailedPrecondition."""
        runs = reader.live_runs(row.agent_id)
        if not runs:
            return
        jobs = [reader.job_by_key(run.job_key) for run in runs[:_MOST_NAMED]]
        named = ", ".join(f"{job.job_id} of {job.project}" for job in jobs)
        more = f" and {len(runs) - len(jobs)} more" if len(runs) > len(jobs) else ""
        name, alive = _name(row), self._backend.agent_liveness.is_alive(row)
        if alive:
            advice = f"Run `trainyard agents drain {name}` and wait for them, or cancel them."
        elif row.lease_s is None:
            advice = "It is silent and has no lease, so they may run for ever: cancel them."
        else:
            advice = "It is silent: cancel them, or wait until its lease has ended and they run elsewhere."
        raise FailedPrecondition(f"The agent {name} has runs that have not ended: {named}{more}. {advice}")

    def _publish(self, view: AgentsView) -> None:
        self._backend.notifier.publish(AGENTS_TOPIC, *(agent_topic(agent.agent_id) for agent in view.agents))
        self._controller.schedule()


def unique_name(reader: Reader, row: AgentRow | None, agent: AgentInfo) -> str:
    """The name of an agent, whose row is `row`: its own, or the next one like it that no other agent has. It stays."""
    if row is not None and row.given_name == agent.name and row.removed_at is None and not row.restored:
        return _name(row)
    return free_name(agent.name, {_name(other) for other in reader.agents() if other.agent_id != agent.agent_id})


def given_name_of(row: AgentRow) -> str:
    """The name that the agent has joined under: that of its token, or its own."""
    return row.given_name or _name(row)


def found_agent(reader: Reader, agent: str) -> AgentRow:
    """The agent with that id, or that name, or whose id begins so. Raises NotFound, and FailedPrecondition where there
    are several."""
    rows = reader.agents()
    meant = matching_ids(agent, {row.agent_id: _name(row) for row in rows})
    matching = [row for row in rows if row.agent_id in meant]
    if len(matching) > 1:
        ids = "; ".join(
            f"{row.agent_id} ({_name(row)}, last contact {row.last_seen:%Y-%m-%d %H:%M})" for row in matching
        )
        raise FailedPrecondition(f"There are {len(matching)} agents {agent}: name one by its id. {ids}.")
    if not matching:
        names = ", ".join(sorted({_name(row) for row in rows})) or "none"
        raise NotFound(f"There is no agent {agent}. Agents: {names}.")
    return matching[0]


def view_of(reader: Reader, row: AgentRow) -> AgentsView:
    runs = len(reader.live_runs(row.agent_id))
    return AgentsView(agents=(AgentRef(agent_id=row.agent_id, name=_name(row), runs=runs),))


def _name(row: AgentRow) -> str:
    return str(row.info["name"])
