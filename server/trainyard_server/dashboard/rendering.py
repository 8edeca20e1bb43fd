"""From what is known to HTML. Everything that is put into a page is escaped, but for what this module itself makes."""

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined
from jinja2.nodes import Const, Extends
from jinja2.runtime import Context
from markupsafe import Markup, escape

import trainyard_protocol
from trainyard_protocol.health import sized
from trainyard_server.dashboard.static_files import static_url, static_version

LIVE = "live_"
"""What the names of blocks start with that change while a page is open."""


class Rendering:
    """The templates. Safe to use from any thread."""

    def __init__(self) -> None:
        self._blocks: dict[str, dict[str, Callable[[Context], Iterator[str]]]] = {}
        self._environment = Environment(
            loader=PackageLoader("trainyard_server.dashboard"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            auto_reload=False,
        )
        self._environment.filters.update(
            bytes=sized,
            clock=clock,
            count=count,
            duration=duration,
            number=number,
            spark=spark,
            time=time,
            to_json=to_json,
        )
        self._environment.globals.update(
            static_url=static_url, static_version=static_version(), version=trainyard_protocol.__version__
        )

        # Known in every block, also where one is rendered by itself, and to the macros themselves.
        ui = SimpleNamespace(icon=icon, state=state, job_path=job_path)
        self._environment.globals["ui"] = ui
        macros = vars(self._environment.get_template("_macros.html").module)
        vars(ui).update({name: macro for name, macro in macros.items() if not name.startswith("_")})

    def page(self, template: str, context: Mapping[str, Any]) -> str:
        return self._environment.get_template(template).render(context)

    def parts(self, template: str, context: Mapping[str, Any]) -> dict[str, str]:
        """The live blocks of the template and of those it extends, by their names without the `live_`."""
        shared = self._environment.get_template(template).new_context(dict(context))
        return {
            name.removeprefix(LIVE): "".join(block(shared))
            for name, block in self._live_blocks(template).items()
        }

    def _live_blocks(self, template: str) -> dict[str, Callable[[Context], Iterator[str]]]:
        known = self._blocks.get(template)
        if known is None:
            blocks = self._environment.get_template(template).blocks
            known = {name: block for name, block in blocks.items() if name.startswith(LIVE)}
            assert self._environment.loader is not None
            source = self._environment.loader.get_source(self._environment, template)[0]
            for parent in self._environment.parse(source).find_all(Extends):
                assert isinstance(parent.template, Const), (
                    f"{template} extends what is known only when it is shown"
                )
                known = self._live_blocks(parent.template.value) | known
            self._blocks[template] = known
        return known


@cache
def rendering() -> Rendering:
    """The one of this process, so that it compiles each template once."""
    return Rendering()


@cache
def icon(name: str, label: str = "") -> Markup:
    """A picture out of icons.svg; without a label it is decoration."""
    said = Markup('role="img" aria-label="{}"').format(label) if label else Markup('aria-hidden="true"')
    url = static_url("icons.svg")
    return Markup('<svg class="icon" {}><use href="{}#{}"/></svg>').format(said, url, name)


@cache
def state(name: str) -> Markup:
    """A state of a job, a run or a replica: icon, word, colour."""
    kind = name.lower()
    return Markup('<span class="state state-{}">{}<span>{}</span></span>').format(
        kind, icon(f"state-{kind}"), name.capitalize()
    )


def job_path(project: str, job_id: str) -> str:
    return f"/projects/{quote(project, safe='')}/jobs/{quote(job_id, safe='')}"


def time(moment: datetime | None, form: str = "ago") -> Markup:
    """A moment as the reader's clock and zone have it, which times.js fills in; `form` is ago, time, date-time
    or exact.
    Without scripts it is the moment in UTC."""
    if moment is None:
        return Markup("")
    at = moment.astimezone(UTC)
    return _html(
        f'<time datetime="{_precise(at)}" data-form="{escape(form)}">{at.isoformat(" ", "seconds")[:-6]} UTC</time>'
    )


def clock(since: datetime | None, until: datetime | None = None, now: datetime | None = None) -> Markup:
    """How long it took from `since` to `until`; without an end it is still running, and so is the clock on the page."""
    if since is None:
        return Markup("")
    if until is not None:
        return _html(f"<span>{duration((until - since).total_seconds())}</span>")
    said = duration((now - since).total_seconds()) if now is not None else ""
    return _html(f'<span data-since="{_precise(since.astimezone(UTC))}">{said}</span>')


def duration(seconds: float | None) -> str:
    """`47s`, `3m 12s`, `5h 02m`, `3d 4h`: two units at most."""
    if seconds is None:
        return ""
    whole = max(0, int(seconds))
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m {whole % 60:02}s"
    if whole < 86400:
        return f"{whole // 3600}h {whole % 3600 // 60:02}m"
    return f"{whole // 86400}d {whole % 86400 // 3600}h"


def count(many: int, word: str) -> str:
    """`1 line`, `1,200 lines`."""
    return f"{many:,} {word}{'' if many == 1 else 's'}"


def number(value: float | None) -> str:
    """A measured value in four significant digits."""
    if value is None:
        return ""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    if abs(value) < 1e6 and (value == int(value) or abs(value) >= 1000):
        return f"{value:,.0f}"
    return f"{value:.4g}".replace("e+0", "e").replace("e-0", "e-").replace("e+", "e")


_SPARK_WIDTH, _SPARK_HEIGHT, _MARGIN = 72.0, 18.0, 1.5


def spark(points: Sequence[tuple[float, float]], label: str) -> Markup:
    """A small curve, 72 by 18, of (step, value) in the order of the steps; nothing for fewer than two finite points."""
    finite = [(x, y) for x, y in points if math.isfinite(x) and math.isfinite(y)]
    if len(finite) < 2:
        return Markup("")
    low_x, high_x = finite[0][0], finite[-1][0]
    low_y, high_y = min(y for _, y in finite), max(y for _, y in finite)
    per_step = (_SPARK_WIDTH - 2 * _MARGIN) / ((high_x - low_x) or 1.0)
    per_value = (_SPARK_HEIGHT - 2 * _MARGIN) / ((high_y - low_y) or 1.0)
    path = " ".join(
        f"{_MARGIN + (x - low_x) * per_step:.1f},{_SPARK_HEIGHT - _MARGIN - (y - low_y) * per_value:.1f}"
        for x, y in finite
    )
    return _html(
        f'<svg class="spark" viewBox="0 0 72 18" width="72" height="18" role="img" aria-label="{escape(label)}">'
        f'<polyline points="{path}" fill="none"/></svg>'
    )


def _html(text: str) -> Markup:
    """What is made above for each line of a list, everything that is not ours escaped: Markup.format takes more than
    twice as long."""
    return Markup(text)  # noqa: S704


def _precise(moment: datetime) -> str:
    """In UTC, to the millisecond."""
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def to_json(value: object) -> Markup:
    """For `<script type="application/json">`: no text in it can end the element."""
    text = json.dumps(value, ensure_ascii=True, default=str)
    return Markup(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))  # noqa: S704 - escaped here
