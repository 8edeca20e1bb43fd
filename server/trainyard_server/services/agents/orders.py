"""Orders to agents: each run that an agent should have, and what it needs to start it."""

import logging
from collections.abc import Collection, Sequence
from typing import Any

from trainyard_protocol.job.cluster import TrialOrder
from trainyard_protocol.job.commands import filled
from trainyard_protocol.job.training_input import TrainingInput
from trainyard_protocol.states import RunState
from trainyard_protocol.wire.sync import ReplicaOrder, RunOrder, SpreadOrder
from trainyard_server.context import Backend
from trainyard_server.control.snapshots import live_runs, order_of_capabilities, peers_of, spread_order, trial_order
from trainyard_server.domain.access.run_tokens import RunTokens
from trainyard_server.domain.lifecycle import retries, stalls
from trainyard_server.storage.db.base.columns import values_of
from trainyard_server.storage.db.base.models import JobRow, ReplicaRow, RunRow
from trainyard_server.storage.db.queries.reader import Reader

logger = logging.getLogger(__name__)


class Orders:
    def __init__(self, backend: Backend, run_tokens: RunTokens) -> None:
        self._backend = backend
        self._run_tokens = run_tokens

    def of(
        self, reader: Reader, agent_id: str, reported: Collection[str], *, with_tokens: bool
    ) -> tuple[RunOrder, ...]:
        """The orders for an agent that has reported these runs; `with_tokens`: each has the token of its run."""
        orders = []
        live = live_runs(reader, agent_id)
        gangs = {run.job_key: run for run, _ in live if run.beside is None}
        ended = set(reported) - {run.run_id for run, _ in live}
        late = [(run, list(reader.replicas([run.run_id]))) for run in reader.late_runs(agent_id, ended)]
        mine = [*live, *late]
        jobs = reader.jobs_by_key(run.job_key for run, _ in mine)
        for run, gang in mine:
            job = jobs[run.job_key]
            try:
                training_input, _ = reader.job_input(job)
                trial = trial_order(reader, job)
            except Exception:  # the other runs of the agent go on
                logger.exception("Job %s of %s cannot be read", job.job_id, job.project)
            else:
                gang_run = gangs.get(run.job_key) if run.beside is not None else None
                peers = reader.gang(gang_run) if gang_run is not None else ()
                has_token = with_tokens and run.state is not RunState.ENDED
                token = self._run_tokens.token(run.run_id) if has_token else ""
                spread = spread_order(reader, run)
                retried = _retried_codes(reader, job, training_input)
                further = order_of_capabilities(reader, self._backend, job, token)
                orders.append(
                    self._order(run, gang, peers, job, training_input, trial, token, spread, retried, further)
                )
        return tuple(orders)

    def _order(
        self,
        run: RunRow,
        gang: list[ReplicaRow],
        peers: Sequence[ReplicaRow],
        job: JobRow,
        training_input: TrainingInput,
        trial: TrialOrder | None,
        run_token: str,
        spread: SpreadOrder | None,
        retried_codes: tuple[int, ...],
        further: dict[str, Any],
    ) -> RunOrder:
        job_dir = self._backend.job_dir(job.project, job.owner, job.job_id, training_input.job_dir, job.created_at)
        if training_input.job_dir not in ("", job_dir):
            training_input = training_input.model_copy(update={"job_dir": job_dir})
        training_input = filled(training_input, further["variables"])
        return RunOrder(
            run_id=run.run_id,
            number=run.number,
            target="stop" if run.state in (RunState.STOPPING, RunState.ENDED) else "run",
            project=job.project,
            job_id=job.job_id,
            training_input=training_input,
            replicas=tuple(
                ReplicaOrder(
                    **values_of(replica, ReplicaOrder),
                    pod=self._backend.catalog.pod_settings(replica.machine_type, replica.accelerator_type),
                )
                for replica in gang
            ),
            grace_s=self._backend.settings.grace_s,
            log_quota_bytes=self._backend.settings.log_quota,
            stall=stalls.policy_of(job.labels, self._backend.settings.stall_policy),
            job_dir="" if training_input.job_dir else job_dir,
            owner=job.owner,
            priority=job.priority,
            trial=trial,
            peers=peers_of(gang, peers),
            run_token=run_token,
            spread=spread,
            wants_resolved=not run.has_resolved,
            retried_codes=retried_codes,
            **further,
        )


def _retried_codes(reader: Reader, job: JobRow, training_input: TrainingInput) -> tuple[int, ...]:
    """The exit codes with which no replica is kept, which only a job with keepOnFailure has."""
    scheduling = training_input.scheduling
    if scheduling is None or scheduling.keep_on_failure is None:
        return ()
    return retries.retried_codes(training_input, reader.rules_used(job.key))
