"""`jobs trials`: the trials of a study."""

from datetime import UTC, datetime

from trainyard_cli.client import Client
from trainyard_cli.local.connect import notify
from trainyard_cli.output.jobs import formats, studies
from trainyard_cli.output.jobs.formats import Output


def trials(client: Client, job: str, output: Output, metric: str, goal: str) -> str:
    """The trials, best first; for people with a line about all of them."""
    view = client.trials(job, metric, goal)
    if not output.for_people:
        rows = [trial.model_dump(mode="json", exclude_none=True) for trial in studies.best_first(view)]
        return formats.render(output, rows)
    notify(" ".join(filter(None, (studies.totals(view), view.message, studies.unranked(view)))))
    return studies.trials_text(view, datetime.now(UTC)) if view.trials else ""
