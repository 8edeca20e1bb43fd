"""A job in a notebook: its state, its progress and the curve of its main metric, as HTML without scripts."""

import math
from html import escape

from trainyard_protocol.answers.jobs import JobDetail, ReplicaView
from trainyard_protocol.answers.metrics import CurveDigest
from trainyard_protocol.states import JobState

_WIDTH, _HEIGHT, _MARGIN = 480.0, 120.0, 4.0
_COLOURS = {JobState.SUCCEEDED: "#10713a", JobState.FAILED: "#b3261e", JobState.CANCELLED: "#8a5300"}
_METRICS = 8


def html(detail: JobDetail, address: str) -> str:
    """The job as HTML; `address` is its page in the dashboard. Everything that a user or a program wrote is escaped."""
    primary = next(iter(detail.runs[-1].replicas), None) if detail.runs else None
    job_id = escape(str(detail.job["jobId"]))
    colour = _COLOURS.get(detail.state, "#0a55c4")
    parts = [
        f'<p><a href="{escape(address)}"><b>{job_id}</b></a> '
        f'<span style="color: {colour}; font-weight: 600">{escape(detail.state)}</span>{_progress(primary)}</p>'
    ]
    has_failed = detail.state in (JobState.FAILED, JobState.CANCELLED)
    if reason := str(detail.job.get("errorMessage", "")) if has_failed else detail.waiting:
        parts.append(f'<pre style="white-space: pre-wrap; max-height: 12em; overflow: auto">{escape(reason)}</pre>')
    digest = primary.metrics if primary is not None else None
    if digest is not None and digest.metrics:
        curve = digest.curve()
        parts.append(_svg(curve) if curve is not None else "")
        newest = ", ".join(f"{escape(item.name)} {item.value:.4g}" for item in digest.metrics[:_METRICS])
        parts.append(f"<p>{newest}</p>")
    return f"<div>{''.join(parts)}</div>"


def failure(job_id: str, message: str) -> str:
    """The job as HTML where the server does not tell about it."""
    return f"<div><p><b>{escape(job_id)}</b></p><pre>{escape(message)}</pre></div>"


def _progress(primary: ReplicaView | None) -> str:
    if primary is None or primary.step is None:
        return ""
    of = f" of {primary.steps:,}" if primary.steps else ""
    return f", step {primary.step:,}{of}"


def _svg(curve: CurveDigest) -> str:
    newest = [(curve.step, curve.value)] if curve.points[-1:] != ((curve.step, curve.value),) else []
    points = [(step, value) for step, value in (*curve.points, *newest) if math.isfinite(value)]
    if len(points) < 2:
        return ""
    low, high = min(value for _, value in points), max(value for _, value in points)
    first, last = points[0][0], points[-1][0]
    across = (_WIDTH - 2 * _MARGIN) / ((last - first) or 1)
    up = (_HEIGHT - 2 * _MARGIN) / ((high - low) or 1.0)
    path = " ".join(
        f"{_MARGIN + (step - first) * across:.1f},{_HEIGHT - _MARGIN - (value - low) * up:.1f}"
        for step, value in points
    )
    label = escape(f"{curve.name} from step {first} to {last}, between {low:.4g} and {high:.4g}")
    return (
        f'<svg viewBox="0 0 {_WIDTH:.0f} {_HEIGHT:.0f}" width="{_WIDTH:.0f}" height="{_HEIGHT:.0f}" role="img" '
        f'aria-label="{label}"><title>{label}</title>'
        f'<polyline points="{path}" fill="none" stroke="#0a5fb4" stroke-width="1.6"/></svg>'
    )
