"""The card of a job's page with how it stands among those that ran the same program."""

from collections.abc import Mapping
from typing import Any

from trainyard_protocol.answers.jobs import JobDetail
from trainyard_server.capabilities.experiments.standings import Standings
from trainyard_server.domain.configs.sweep import around
from trainyard_server.use_cases import UseCases


def standing_context(cases: UseCases, project: str, job_id: str, detail: JobDetail) -> Mapping[str, Any]:
    """The context of job/_standing.html. `sweep` is the metric of a study around the job, "" where none is possible."""
    result = cases.of(Standings).result(project, job_id)
    training_input = detail.job["trainingInput"]
    ranges = around(training_input.get("args", ()), result.metric) if result.metric else None
    has_sweep = ranges is not None and "hyperparameters" not in training_input
    return {"parameters": result.parameters, "standing": result.standing, "sweep": result.metric if has_sweep else ""}
