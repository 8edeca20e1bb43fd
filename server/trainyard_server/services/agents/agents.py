"""Use cases of operators: which agents are given runs, and which are forgotten."""

from collections.abc import Sequence

from trainyard_protocol.errors import FailedPrecondition, NotFound
from trainyard_protocol.views.agents import AgentRef, AgentsView
from trainyard_server.context import Backend
from trainyard_server.control.controller import Controller
from trainyard_server.domain.access.permissions import Caller, Role
from trainyard_server.storage.db.base.models import AgentRow
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
        """Give the agents of that name or id no new run, or again. Raises NotFound."""
        with self._backend.store.write() as writer:
            rows = _found(writer, agent)
            for row in rows:
                writer.set_draining(row, draining)
            view = _view(writer, rows)
        self._publish(view)
        return view

    def remove(self, caller: Caller, agent: str) -> AgentsView:
        """Forget the agents of that name or id, and revoke their tokens once no agent has that name.

        Their rows stay, for the runs that they had. Raises NotFound, FailedPrecondition while one has an unfinished
        run.
        """
        now = self._backend.clock()
        with self._backend.store.write() as writer:
            rows = _found(writer, agent)
            view = _view(writer, rows)
            for row in rows:
                self._check_unused(writer, row)
                writer.remove_agent(row, now)
            writer.session.flush()
            left = {_name(row) for row in writer.agents()}
            for name in {listed.name for listed in view.agents} - left:
                people.revoke_agent_tokens(writer, name, caller.name, now)
        self._publish(view)
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
        advice = (
            f"Run `trainyard agents drain {name}` and wait for them, or cancel them."
            if alive
            else "It is silent: cancel them, or wait until its lease has ended and they run elsewhere."
        )
        raise FailedPrecondition(f"The agent {name} has runs that have not ended: {named}{more}. {advice}")

    def _publish(self, view: AgentsView) -> None:
        self._backend.notifier.publish(AGENTS_TOPIC, *(agent_topic(agent.agent_id) for agent in view.agents))
        self._controller.schedule()


def _found(reader: Reader, agent: str) -> list[AgentRow]:
    rows = reader.agents()
    matching = [row for row in rows if row.agent_id == agent] or [row for row in rows if _name(row) == agent]
    if not matching:
        names = ", ".join(sorted({_name(row) for row in rows})) or "none"
        raise NotFound(f"There is no agent {agent}. There are: {names}.")
    return matching


def _view(reader: Reader, rows: Sequence[AgentRow]) -> AgentsView:
    return AgentsView(
        agents=tuple(
            AgentRef(agent_id=row.agent_id, name=_name(row), runs=len(reader.live_runs(row.agent_id))) for row in rows
        )
    )


def _name(row: AgentRow) -> str:
    return str(row.info["name"])
