"""`trainyard audit list`: the rows, as a table or for scripts."""

import json
from itertools import islice

from trainyard_cli.client import AuditFilter
from trainyard_cli.local.connect import connect, notify
from trainyard_cli.output.jobs import formats
from trainyard_cli.output.jobs.formats import Output
from trainyard_cli.output.log.log_screen import without_control
from trainyard_cli.output.text.safe import echo, printable_json
from trainyard_cli.settings import Target
from trainyard_protocol.views.audit import AuditEntry


def list_audit(target: Target, output: Output, query: AuditFilter, limit: int) -> None:
    with connect(target) as client:
        found = list(islice(client.audit(query, limit + 1), limit + 1))
    entries, more = found[:limit], len(found) > limit
    if output.kind == "json":
        for entry in entries:
            line = json.dumps(entry.model_dump(mode="json"), ensure_ascii=False, separators=(",", ":"))
            echo(printable_json(line))
    elif not output.for_people:
        echo(formats.render(output, [entry.model_dump(mode="json") for entry in entries]))
    elif entries:
        headers = ["TIME", "ACTOR", "ACTION", "PROJECT", "SUBJECT", "OUTCOME", "FROM"]
        echo(formats.table(headers, [_row(entry) for entry in entries]))
    else:
        notify("Listed 0 items.")
    if more:
        notify(f"There are more than {limit} rows: give a larger --limit, or a filter.")


def _row(entry: AuditEntry) -> list[str]:
    outcome = entry.outcome if entry.outcome == "done" else f"{entry.outcome} ({entry.status})"
    if entry.count > 1:
        outcome += f", {entry.count:,} times"
    time = entry.time.astimezone().strftime("%Y-%m-%dT%H:%M:%S")
    shown = [time, entry.actor, entry.action, entry.project, entry.subject, outcome, entry.address]
    return list(map(without_control, shown))
