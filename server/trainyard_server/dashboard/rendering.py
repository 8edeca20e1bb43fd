"""HTML from templates. Every value is escaped, except the markup that this module makes."""

import json
import math
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache, lru_cache
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote

from jinja2 import ChoiceLoader, Environment, FileSystemLoader, PrefixLoader, StrictUndefined, meta, pass_context
from jinja2.nodes import Const, Extends
from jinja2.runtime import Context
from markupsafe import Markup, escape

import trainyard_protocol
from trainyard_protocol.fields import sized
from trainyard_server.dashboard.frame import Frame
from trainyard_server.dashboard.live_parts import LivePart
from trainyard_server.dashboard.resources import folders
from trainyard_server.dashboard.row_cache import RowCache
from trainyard_server.dashboard.static_files import static_url, static_version
from trainyard_server.domain.durations import duration

LIVE = "live_"
"""Prefix of the names of blocks that change while a page is open."""

_ROWS = "_rows"  # the RowCache of an open page, in the context of its live parts


class Rendering:
    """Templates. Thread-safe."""

    def __init__(self) -> None:
        self._blocks: dict[str, dict[str, Callable[[Context], Iterator[str]]]] = {}
        loaders = {name: FileSystemLoader(folder) for name, folder in folders("templates").items()}
        self._environment = Environment(
            loader=ChoiceLoader([loaders.pop(""), PrefixLoader(loaders)]),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            auto_reload=False,
        )
        self._environment.filters.update(
            bytes=sized,
            count=count,
            duration=duration,
            number=number,
            sentence=sentence,
            spark=spark,
            time=time,
            to_json=to_json,
        )
        self._environment.globals.update(
            static_url=static_url, static_version=static_version(), version=trainyard_protocol.__version__
        )

        self._environment.filters["clock"] = _clock
        self._environment.globals["row"] = self._row

        # A global, so that blocks rendered alone and the macros themselves have it.
        ui = SimpleNamespace(icon=icon, state=state, job_path=job_path)
        self._environment.globals["ui"] = ui
        macros = vars(self._environment.get_template("_macros.html").module)
        vars(ui).update({name: macro for name, macro in macros.items() if not name.startswith("_")})

    def page(self, template: str, context: Mapping[str, Any]) -> str:
        return self._environment.get_template(template).render(context)

    def parts(self, template: str, context: Mapping[str, Any], rows: RowCache) -> dict[str, LivePart]:
        """Live blocks of the template and of its parents, by name without `live_`. `rows`: of the same page before."""
        rows.begin()
        shared = self._environment.get_template(template).new_context({**context, _ROWS: rows})
        blocks = self._live_blocks(template).items()
        return {name.removeprefix(LIVE): LivePart.of("".join(block(shared))) for name, block in blocks}

    @pass_context
    def _row(
        self, context: Context, template: str, key: Hashable, own: Mapping[str, Any], varying: Collection[str] = ()
    ) -> Markup:
        """A row from its template, which has the context and `own`. Of an open page it is rendered again only if `own`
        or another value that the template names has changed, but for those `varying` from reading to reading, of which
        `own` has what the row shows."""
        whole = context.get_all()

        def render() -> Markup:
            row = self._environment.get_template(template)
            return _html("".join(row.root_render_func(row.new_context({**whole, **own}))))

        def shared() -> Mapping[str, Any]:
            return {name: whole.get(name) for name in self._names(template) - own.keys() - {*varying}}

        rows: RowCache | None = whole.get(_ROWS)
        return render() if rows is None else _html(rows.row((template, key), own, shared, render))

    @lru_cache  # noqa: B019 - there is one for the process
    def _names(self, template: str) -> frozenset[str]:
        """The values that a template, which includes no other, takes from its context."""
        assert self._environment.loader is not None
        parsed = self._environment.parse(self._environment.loader.get_source(self._environment, template)[0])
        assert not any(meta.find_referenced_templates(parsed)), f"{template} includes another template"
        return frozenset(meta.find_undeclared_variables(parsed)).difference(self._environment.globals)

    def _live_blocks(self, template: str) -> dict[str, Callable[[Context], Iterator[str]]]:
        live_blocks = self._blocks.get(template)
        if live_blocks is None:
            blocks = self._environment.get_template(template).blocks
            live_blocks = {name: block for name, block in blocks.items() if name.startswith(LIVE)}
            assert self._environment.loader is not None
            source = self._environment.loader.get_source(self._environment, template)[0]
            for parent in self._environment.parse(source).find_all(Extends):
                assert isinstance(parent.template, Const), f"{template} extends a template that only its context names"
                live_blocks = self._live_blocks(parent.template.value) | live_blocks
            self._blocks[template] = live_blocks
        return live_blocks


@cache
def rendering() -> Rendering:
    """One for the process: each template is compiled once."""
    return Rendering()


@cache
def icon(name: str, label: str = "") -> Markup:
    """An icon of icons.svg; without a label it is decoration."""
    aria = Markup('role="img" aria-label="{}"').format(label) if label else Markup('aria-hidden="true"')
    url = static_url("icons.svg")
    return Markup('<svg class="icon" {}><use href="{}#{}"/></svg>').format(aria, url, name)


@cache
def state(name: str) -> Markup:
    """A state of a job, a run or a replica: icon, word, colour."""
    kind = name.lower()
    return Markup('<span class="state state-{}">{}<span>{}</span></span>').format(
        kind, icon(f"state-{kind}"), name.capitalize()
    )


def job_path(project: str, job_id: str) -> str:
    return f"/projects/{quote(project, safe='')}/jobs/{quote(job_id, safe='')}"


def time(when: datetime | None, form: str = "ago") -> Markup:
    """Time that times.js writes in the browser's zone; `form`: ago, time, date-time or exact. UTC without scripts."""
    if when is None:
        return Markup("")
    at = when.astimezone(UTC)
    return _html(
        f'<time datetime="{_precise(at)}" data-form="{escape(form)}">{at.isoformat(" ", "seconds")[:-6]} UTC</time>'
    )


def clock(since: datetime | None, until: datetime | None = None, now: datetime | None = None) -> Markup:
    """Duration from `since` to `until`; without `until` times.js keeps counting."""
    if since is None:
        return Markup("")
    if until is not None:
        return _html(f"<span>{duration((until - since).total_seconds())}</span>")
    so_far = duration((now - since).total_seconds()) if now is not None else ""
    return _html(f'<span data-since="{_precise(since.astimezone(UTC))}">{so_far}</span>')


@pass_context
def _clock(context: Context, since: datetime | None, until: datetime | None = None, now: datetime | None = None) -> str:
    """The filter. In live parts a running duration has no text, so that time alone does not change them."""
    return clock(since, until, now if context.get(_ROWS) is None else None)


def count(many: int, word: str) -> str:
    """`1 line`, `1,200 lines`."""
    return f"{many:,} {word}{'' if many == 1 else 's'}"


def number(value: float | None, decimals: int | None = None) -> str:
    """A measured value in four significant digits, or with these decimals."""
    if value is None:
        return ""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    if decimals is not None:
        return f"{value:,.{decimals}f}"
    if abs(value) < 1e6 and (value == int(value) or abs(value) >= 1000):
        return f"{value:,.0f}"
    return f"{value:.4g}".replace("e+0", "e").replace("e-0", "e-").replace("e+", "e")


def sentence(text: str) -> str:
    """The text with a capital first letter. The rest stays: Jinja's `capitalize` turns T4 into t4."""
    return text[:1].upper() + text[1:]


def spark(points: Sequence[tuple[float, float]], label: str) -> Markup:
    """Sparkline, 72 by 18, of (step, value) in the order of the steps; empty for fewer than two finite points."""
    finite = [(x, y) for x, y in points if math.isfinite(x) and math.isfinite(y)]
    if len(finite) < 2:
        return Markup("")
    values = [y for _, y in finite]
    frame = Frame(72, 18, finite[0][0], finite[-1][0], min(values), max(values), margin=1.5)
    return _html(
        f'<svg class="spark" viewBox="0 0 72 18" width="72" height="18" role="img" aria-label="{escape(label)}">'
        f'<path d="{frame.path(finite)}" fill="none"/></svg>'
    )


def _html(text: str) -> Markup:
    """Markup of a text that is escaped already: Markup.format takes twice as long in long lists."""
    return Markup(text)  # noqa: S704


def _precise(at: datetime) -> str:
    """A time in UTC, to the millisecond."""
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def to_json(value: object) -> Markup:
    """JSON for `<script type="application/json">`: no text in it can end the element."""
    text = json.dumps(value, ensure_ascii=True, default=str)
    return Markup(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))  # noqa: S704 - escaped here
