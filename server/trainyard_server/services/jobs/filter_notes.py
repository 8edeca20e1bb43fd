"""Notes about a filter that finds no job: a parameter or a metric that no job of the project has."""

from collections.abc import Iterator

from trainyard_protocol.errors import shown
from trainyard_protocol.fields import did_you_mean
from trainyard_server.domain.filters.filter_syntax import Expression
from trainyard_server.storage.db.queries.reader import Reader
from trainyard_server.storage.db.queries.value_filters import METRICS, PARAMETERS, split_metric, terms
from trainyard_server.storage.db.tables import job_values

_MOST_NAMES = 1000
_MOST_NAMED = 10


def filter_notes(reader: Reader, project: str, expression: Expression | None) -> Iterator[str]:
    """A sentence for each name, with the one that was probably meant, else those that there are."""
    fields = dict.fromkeys(term.field for term in terms(expression))
    wanted = [("metric", split_metric(field)[0]) for field in fields if field.startswith(METRICS)]
    wanted += [("parameter", field.removeprefix(PARAMETERS)) for field in fields if field.startswith(PARAMETERS)]
    if not wanted:
        return
    parameters, metrics = job_values.names(reader, frozenset({project}), _MOST_NAMES)
    for kind, name in dict.fromkeys(wanted):
        names = metrics if kind == "metric" else parameters
        if name not in names:
            there_are = f"Its jobs have {', '.join(names[:_MOST_NAMED])}." if names else f"Its jobs have no {kind}s."
            yield f"No job of {project} has a {kind} {shown(name)}. {did_you_mean(name, names) or there_are}"
