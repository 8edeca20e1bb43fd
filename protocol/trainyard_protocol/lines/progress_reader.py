"""Progress in what training programs print anyway: JSON lines, the bars of Keras and tqdm, lines of `key: value` pairs.

    {"step": 120, "loss": 0.31}                                      with or without an `event`
    Epoch 2/5 · 45/120 ━━━━ 3s 12ms/step - accuracy: 0.9 - loss: 0.3  Keras: a header, then a bar
    Epoch 2:  45%|███  | 45/100 [00:03<00:04, 12.3it/s, loss=0.31]    tqdm
    Epoch 1/4 ━━━━ 45/100 0:00:03 • 0:00:04 12.30it/s loss: 0.310     Lightning, by Rich
    Epoch [2/5], Step [100/600], Loss: 0.31                           pairs, with a step or an epoch
    [10]  train-rmse:0.31                                              rounds of boosting (`rounds`)
    Test accuracy: 0.93                                               results at the last step (`results`)

Any other line without a step or an epoch counts for nothing. `docs/how-to/metrics.md` has the rules for users.
`ProgressReader.read` runs on every line of every program: most are rejected by a few searches for words, and every
other search is bounded.
"""

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple, Self

from trainyard_protocol.lines.pairs import NO_METRICS, NUMBER, pairs
from trainyard_protocol.lines.progress import (
    HEARTBEAT,
    MAX_LINE,
    MAX_METRICS,
    MAX_NAME,
    MAX_STEP,
    ProgressEvent,
    epoch_number,
    event_of,
    json_fields,
    metrics_of,
)
from trainyard_protocol.lines.results import RESULT_ENDS, final_results, may_have_results
from trainyard_protocol.lines.rounds import announces_best, is_round, round_of

_KERAS_BAR = "keras"
_RICH_BAR = "rich"
_ROUNDS = "rounds"

EPOCH_UNITS = 1000
"""Points of a fractional epoch without a step are at its thousandths: epoch 2.5 is step 2500."""

_WORDS = ("step", "Step", "STEP", "epoch", "Epoch", "EPOCH", "iter", "Iter", "ITER", "batch", "Batch")
_KERAS_FIRST = frozenset("0123456789 \x1b\b")

_ANSI = re.compile(r"\x1b\[[0-9;?]{0,20}[A-Za-z]|\x08")
_AT = r"['\"]?\s{0,4}[:=#]?\s{0,4}['\"]?\[?\s{0,8}"
_QUOTED_EPOCH = re.compile(r"epoch['\"]?\s{0,4}[:=]\s{0,4}['\"]")
_EPOCH = re.compile(
    rf"epoch(?:\(\w{{1,12}}\))?{_AT}(\d{{1,12}}(?:\.\d{{1,17}})?)(?!\w|\.\d)(?:\s{{0,4}}(?:/|of)\s{{0,4}}(\d{{1,12}}))?"
    r"\s{0,2}\]?(?:[\s:|]{0,8}\[?\s{0,8}(\d{1,15})\s{0,4}/\s{0,4}(\d{1,15})\b(?!/))?"
)
_STEP = re.compile(
    rf"(?:step|iteration|iter|batch)(?:\(\w{{1,12}}\))?{_AT}(\d{{1,18}})(?!\w|\.\d)"
    r"(?:\s{0,4}(?:/|of)\s{0,4}(\d{1,18}))?"
)
_NOT_BEFORE = re.compile(r"(?:[\w.@/-]|\b(?:max|num|total|warmup|start|best|last|per|every) )$")
_HEADER = re.compile(
    r"\s{0,8}epoch\s{0,4}:?\s{0,4}\[?(\d{1,9})(?:\s{0,2}(?:/|of)\s{0,2}(\d{1,9}))?\]?[\s:.-]{0,80}", re.IGNORECASE
)
_SAMPLES = re.compile(r"\[\s{0,8}(\d{1,15})\s{0,2}/\s{0,8}(\d{1,15})\]\s{0,8}$")
_KERAS = re.compile(
    r"\s{0,20}(\d{1,15})/(\d{1,15}|Unknown)(?: \[[=>.]{1,80}\]| {1,2}[━╸╺]{1,80}| -(?= \d{1,9}s)| (?=\d{1,9}s ))"
)
_KERAS_METRIC = re.compile(rf" - ([A-Za-z_][\w./@-]{{0,{MAX_NAME - 1}}}): ({NUMBER})(?=\s|$)", re.IGNORECASE)
_RICH = re.compile(
    r"\s{0,4}Epoch (\d{1,9})(?:/(-?\d{1,9}))?\s{1,20}(?:[━╸╺]{1,200}\s{1,20})?(\d{1,15})/(\d{1,15}|--)\s{1,8}"
    r"[\d:.-]{4,24} • [\d:.-]{4,24}\s{1,8}[\d.]{1,15}it/s(?=\s|$)"
)
_RICH_CONTINUED = re.compile(  # perhaps behind the value of a name that Rich has cut in the line before
    rf"\s{{16,400}}(?:[\w.+-]{{1,40}} )?(?:[\w./@-]{{1,{MAX_NAME}}}: [\w.+-]{{1,40}}\s{{0,200}}){{1,8}}"
)
_TQDM = re.compile(r"\s{0,8}(\d{1,15})/(\d{1,15}) \[(?:[\d:]{1,12}<[\d:?]{1,12}|[\d:]{1,12})")
_TQDM_ENDLESS = re.compile(r"(?:^|.{0,200}?: |\s)(\d{1,15})it \[[\d:]{1,12}")
_RATE = re.compile(r", +(?:[\d.]{1,12}|\?)(?:([A-Za-z]{1,20})/s|s/([A-Za-z]{1,20}))")
_UNITS = frozenset({"it", "batch", "batches", "step", "steps", "iter", "ba"})
_DIGITS = re.compile(r"\d+")
_EPOCHS_BAR = re.compile(r"\W*(?:training\W+)?epochs?\W*", re.IGNORECASE)
_EVALUATION = re.compile(r"(?<![a-z])(val|eval|test)", re.IGNORECASE)
_OTHER_WORK = re.compile(
    r"(?<![a-z])(?:download|fetch|load|map|filter|extract|generat|tokeniz|process|preprocess|predict|infer|sampl|sanity"
    r"|sav|comput|resolv|upload|read|cach|copy|convert|encod|decod|split|creat|build|writ|prepar)",
    re.IGNORECASE,
)

_POSITIONS = 8
_INDENT = " " * 16
_LIGHTNING = "v_num="

_STEP_FIELDS = ("step", "global_step", "iteration", "iter")


class _Report(NamedTuple):
    """The content of a line: a raw step of `steps`, an epoch of `epochs`, metrics. `bar` identifies a bar of tqdm."""

    metrics: Mapping[str, float]
    step: int | None = None
    steps: int | None = None
    epoch: int | float | None = None
    epochs: int | None = None
    bar: str | None = None


@dataclass(slots=True)
class ProgressReader:
    """Reads the lines of one replica in their order, of both its streams. Its state is a few numbers.

    Steps that are counted anew in each epoch are counted on, so that a curve has one axis: a bar at 45 of 100 in the
    third epoch is at step 245.
    """

    epoch: int | None = None
    """The epoch of the last header, which the lines behind it belong to."""
    epochs: int | None = None
    first_epoch: int | None = None
    """0 or 1: the number of the first epoch."""
    counted_epoch: int | None = None
    """The epoch of the last raw step."""
    base: int = 0
    """Steps before the epoch, or the pass of a bar."""
    last: int | None = None
    """The last raw step."""
    step: int | None = None
    per_epoch: int | None = None
    is_global: bool = False
    """Whether raw steps go on over epochs."""
    bar: str | None = None
    """The bar of tqdm that is the training."""
    bar_has_metrics: bool = False
    is_epoch_done: bool = False
    """Whether Keras' bar of the epoch has ended: the next one without a header is an evaluation."""
    is_fractional: bool = False
    """Whether epochs without a step are at their thousandths: one of them had a fraction, or was quoted."""
    latest: int | None = None
    """The step of the last event, which results without a step belong to."""
    is_repeat_next: bool = False
    """Whether the next round of boosting repeats the best one."""
    is_in_rich_bar: bool = False
    """Whether the metrics of a bar by Rich may go on in the next line."""

    @classmethod
    def of(cls, stored: Mapping[str, Any] | None) -> Self:
        """The inverse of `state`; a new reader for None or the state of another version."""
        try:
            return cls(**(stored or {}))
        except TypeError:
            return cls()

    def state(self) -> dict[str, Any]:
        """JSON from which `of` continues."""
        return {name: value for name, value in asdict(self).items() if value != getattr(_NEW, name)}

    def read(self, text: str, overwritten: bool = False) -> ProgressEvent | None:
        """The progress in a line; None if there is none. `overwritten`: a bar's state before its last. Never raises."""
        if not may_report(text):
            return None
        event = self._event(text, overwritten)
        if event is not None and event.step is not None:
            self.latest = event.step
        return event

    def _event(self, text: str, overwritten: bool) -> ProgressEvent | None:
        if text.startswith("{"):
            fields = json_fields(text)
            if fields is not None:
                return self._object(fields, text)
        if "\x1b" in text or "\b" in text:
            text = _ANSI.sub("", text)
        if is_round(text):
            return self._round(text)
        if "•" in text and (bar := _RICH.match(text)) is not None:
            return self._rich(text, bar)
        if self.is_in_rich_bar and self.step is not None and _RICH_CONTINUED.fullmatch(text) is not None:
            return ProgressEvent("", self.step, metrics=dict(pairs(text.lower())), is_position=False)
        if "%|" in text or "it [" in text:
            return self._tqdm(text)
        if (bar := _KERAS.match(text)) is not None:
            return self._keras(text, bar, overwritten)
        return self._text(text)

    def _object(self, fields: Mapping[str, object], text: str) -> ProgressEvent | None:
        event = event_of(fields)
        if event is not None:
            if event.step is not None:
                self.step = event.step
                return event
            if event.event == HEARTBEAT or event.epoch is None or not (metrics := metrics_of(fields)):
                return event
            placed = self._at_epoch(_Report(metrics, epoch=event.epoch, epochs=_whole(event.epochs)))
            return replace(placed, event=event.event)
        step = next((s for name in _STEP_FIELDS if (s := _whole(fields.get(name))) is not None), None)
        epoch = epoch_number(fields.get("epoch"))
        if step is None and epoch is None:
            message = fields.get("message")
            if not isinstance(message, str):
                return self._results(text)
            return self._text(message) if len(message) <= MAX_LINE else None
        metrics = {name: value for name, value in metrics_of(fields).items() if not NO_METRICS.fullmatch(name)}
        steps = next((s for name in ("steps", "total_steps") if (s := _whole(fields.get(name)))), None)
        return self._placed(_Report(metrics, step, steps, epoch, _whole(fields.get("epochs"))))

    def _keras(self, text: str, bar: "re.Match[str]", overwritten: bool) -> ProgressEvent | None:
        step, steps = int(bar[1]), int(bar[2]) if bar[2] != "Unknown" else None
        if self.is_epoch_done and self.epoch is not None:
            return None
        self.is_epoch_done = step == steps and not overwritten
        printed = _KERAS_METRIC.findall(text, bar.end())
        metrics = {name: float(value) for name, value in printed[:MAX_METRICS]}
        return self._placed(_Report(metrics, step, steps, self.epoch, self.epochs, _KERAS_BAR))

    def _rich(self, text: str, bar: "re.Match[str]") -> ProgressEvent:
        """A bar of Lightning, which counts epochs from 0 to the last. Its metrics may go on in lines behind."""
        if self.first_epoch is None:
            self.first_epoch = 0
        steps = int(bar[4]) if bar[4] != "--" else None
        epochs = int(bar[2]) + 1 if bar[2] and int(bar[2]) >= 0 else None
        metrics = dict(pairs(text[bar.end() :].lower()))
        event = self._placed(_Report(metrics, int(bar[3]), steps, int(bar[1]), epochs, _RICH_BAR))
        self.is_in_rich_bar = True
        return event

    def _round(self, text: str) -> ProgressEvent | None:
        """A round of boosting. Those of a further model are counted on."""
        was_repeat, self.is_repeat_next = self.is_repeat_next, False
        result = round_of(text)
        if result is None or was_repeat:
            return None
        number, metrics = result
        if self.bar != _ROUNDS:
            self.bar, self.last, self.base = _ROUNDS, None, 0
        elif self.last is not None and number < self.last:
            self.base += self.last + (number == 0)
        return self._placed(_Report(metrics, number, bar=_ROUNDS))

    def _tqdm(self, text: str) -> ProgressEvent | None:
        report = _tqdm_report(text)
        if report is None or report.bar is None:
            return None
        if self.first_epoch is None and _LIGHTNING in text:
            self.first_epoch = 0
        if report.step is None:  # a bar over epochs
            return self._at_epoch(report)
        is_main = report.bar == self.bar or self.bar is None or (report.metrics and not self.bar_has_metrics)
        evaluation = _EVALUATION.search(report.bar)
        if evaluation is not None or not is_main:
            return self._beside(report, evaluation[1].lower() if evaluation is not None else "")
        if _OTHER_WORK.search(report.bar) is not None:
            return None
        if report.bar != self.bar:
            self.bar, self.last, self.base = report.bar, None, 0
        self.bar_has_metrics = self.bar_has_metrics or bool(report.metrics)
        if report.epoch is None and self.last is not None and report.step < self.last:
            self.base += self.last  # another pass
        return self._placed(report)

    def _beside(self, report: _Report, prefix: str) -> ProgressEvent | None:
        """The metrics of another bar than that of the training, at the step of the training."""
        if not report.metrics or self.step is None:
            return None
        named = {
            name if not prefix or _EVALUATION.match(name) else f"{prefix}_{name}": value
            for name, value in report.metrics.items()
        }
        return ProgressEvent("", self.step, metrics=named, is_position=False)

    def _text(self, text: str) -> ProgressEvent | None:
        if (header := _HEADER.fullmatch(text)) is not None:
            return self._enter_epoch(int(header[1]), int(header[2]) if header[2] else None)
        report = _text_report(text, self.epoch)
        if report is not None:
            return self._placed(report)
        self.is_repeat_next = self.is_repeat_next or announces_best(text)
        return self._results(text)

    def _results(self, text: str) -> ProgressEvent | None:
        """Results without a step, at the last one."""
        metrics = final_results(text)
        return (
            ProgressEvent("", self.latest or 0, metrics=metrics, is_position=False, is_guess=True) if metrics else None
        )

    def _enter_epoch(self, epoch: int, epochs: int | None) -> ProgressEvent:
        self.epoch, self.epochs, self.is_epoch_done = epoch, epochs or self.epochs, False
        return ProgressEvent("", epoch=epoch, epochs=self.epochs)

    def _placed(self, report: _Report) -> ProgressEvent:
        """The event of a report, with its step counted on over epochs."""
        if report.step is None:
            return self._at_epoch(report)
        self.is_in_rich_bar = False
        epoch = report.epoch
        if epoch is None and report.bar is None:
            epoch = self.epoch  # a bar is on stderr, where it may be older than the header on stdout
        number = int(epoch) if epoch is not None else None
        if number is not None and number != self.counted_epoch:
            self._begin_epoch(number, report)
        self.last = report.step
        self.step = min(self.base + report.step, MAX_STEP)
        epochs = self.epochs if report.epochs is None else report.epochs
        return ProgressEvent("", self.step, self._total(report, number), "", epoch, epochs, report.metrics)

    def _begin_epoch(self, epoch: int, report: _Report) -> None:
        """Find the number of steps before an epoch, of which this is the first report."""
        assert report.step is not None
        if self.first_epoch is None:
            self.first_epoch = min(epoch, 1)
        before, self.counted_epoch = self.counted_epoch, epoch
        if self.is_global:
            return
        steps = report.steps
        if before is None or self.last is None:
            self.base = (epoch - self.first_epoch) * steps if steps and epoch > self.first_epoch else 0
        elif report.bar is None and report.step > self.last and (not self.per_epoch or self.last < self.per_epoch):
            self.is_global, self.base, steps = True, 0, None
        else:
            size = steps or self.per_epoch or self.last
            self.base += (epoch - before) * size if epoch > before else size
            steps = steps or self.per_epoch
        self.per_epoch = steps

    def _total(self, report: _Report, epoch: int | None) -> int | None:
        if report.steps is None:
            return None
        if self.is_global:
            return report.steps
        epochs = report.epochs if report.epochs is not None else self.epochs
        left = 1 if epoch is None or epochs is None else epochs - epoch + (self.first_epoch or 0)
        return min(self.base + report.steps * max(1, left), MAX_STEP)

    def _at_epoch(self, report: _Report) -> ProgressEvent:
        """The event of a report that has an epoch alone: its step is the epoch, or the last step of that epoch."""
        assert report.epoch is not None
        is_position = self.step is None
        epochs = report.epochs if report.epochs is not None else self.epochs
        self.is_fractional = self.is_fractional or isinstance(report.epoch, float)
        number: float = report.epoch
        unit = EPOCH_UNITS if self.is_fractional else self.per_epoch or 1
        if not self.is_fractional and self.per_epoch:
            number += 1 - (min(report.epoch, 1) if self.first_epoch is None else self.first_epoch)
        steps = min(epochs * unit, MAX_STEP) if epochs is not None and is_position else None
        step = max(0, min(round(number * unit), MAX_STEP))
        return ProgressEvent("", step, steps, "", report.epoch, epochs, report.metrics, is_position, is_guess=True)


_NEW = ProgressReader()


_ROUND_START = 13  # characters of a round's number, with the tab behind it


def may_report(text: str) -> bool:
    """Whether a line may be progress: False for most lines, at the cost of a few searches."""
    if len(text) > MAX_LINE:
        return False
    for word in _WORDS:
        if word in text:
            return True
    if "%|" in text or "it [" in text or (text.endswith("]") and "/" in text[-40:]):
        return True
    first = text[:1]
    if text[-1:] in RESULT_ENDS and (":" in text or "=" in text or first == "│") and may_have_results(text):
        return True
    if first in _KERAS_FIRST:
        start = text[:400]
        if _KERAS.match(_ANSI.sub("", start) if "\x1b" in start or "\b" in start else start) is not None:
            return True
        if first == " ":
            return text.startswith(_INDENT) and _RICH_CONTINUED.fullmatch(text) is not None
    if first == "{":
        return '"event"' in text
    return "\t" in text[:_ROUND_START] and is_round(text)


def _whole(value: object) -> int | None:
    """A whole number, also as a float; None for anything else."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_STEP else None


def _tqdm_report(text: str) -> _Report | None:
    """The state of a bar of tqdm, with its description, in which digits are `#`, as `bar`."""
    percent = text.find("%|")
    if percent >= 0:
        edge = text.find("|", percent + 2)
        counts = _TQDM.match(text, edge + 1) if edge > 0 else None
        description = text[:percent].rstrip("0123456789 ").removesuffix(":")
    else:
        counts = _TQDM_ENDLESS.match(text)
        description = text[: counts.start(1)].strip().removesuffix(":") if counts is not None else ""
    if counts is None:
        return None
    step = int(counts[1])
    steps = int(counts[2]) if counts.re is _TQDM else None
    rate = _RATE.match(text, counts.end())
    unit = (rate[1] or rate[2] or "") if rate is not None else ""
    metrics = dict(pairs(text[rate.end() :].lower())) if rate is not None else {}
    if _EPOCHS_BAR.fullmatch(description) or unit in ("epoch", "epochs"):
        return _Report(metrics, epoch=step, epochs=steps, bar="epochs")
    if not metrics and unit not in _UNITS:
        return None
    bar = _DIGITS.sub("#", description) or f"of {steps}"
    if metrics and step == 0:
        step = 1  # set_postfix comes before the bar has counted its first step
    if (epoch := _EPOCH.search(description.lower())) is not None:
        return _Report(metrics, step, steps, int(float(epoch[1])), int(epoch[2]) if epoch[2] else None, bar)
    return _Report(metrics, step, steps, bar=bar)


def _text_report(text: str, header: int | None) -> _Report | None:
    """The report of a line that has a step or an epoch, and named numbers. `header`: the epoch of a line before."""
    text = text.lower()
    epoch, step = _position(_EPOCH, text), _position(_STEP, text)
    if epoch is None and step is None:
        samples = _SAMPLES.search(text) if header is not None else None
        if samples is None:
            return None
        metrics = dict(pairs(text[: samples.start()]))
        return _Report(metrics, int(samples[1]), int(samples[2])) if metrics else None
    metrics = dict(pairs(text))
    if not metrics:
        return None
    number: int | float | None = None
    epochs: int | None = None
    raw = (int(step[1]), int(step[2]) if step[2] else None) if step is not None else None
    if epoch is not None:
        is_fractional = "." in epoch[1] or _QUOTED_EPOCH.match(text, epoch.start()) is not None
        number = float(epoch[1]) if is_fractional else int(epoch[1])
        epochs = int(epoch[2]) if epoch[2] else None
        if raw is None and epoch[3]:  # Train Epoch: 1 [640/60000 (1%)]
            raw = int(epoch[3]), int(epoch[4])
    if raw is None:
        return _Report(metrics, epoch=number, epochs=epochs)
    return _Report(metrics, raw[0], raw[1], number, epochs)


def _position(pattern: "re.Pattern[str]", text: str) -> "re.Match[str] | None":
    """The first step or epoch in a text in lower case that is the program's: not `max epoch 5`, not a longer name, no
    argument of a call."""
    for count, match in enumerate(pattern.finditer(text)):
        before = text[max(0, match.start() - 10) : match.start()]
        if count == _POSITIONS:
            break
        if before.endswith(("global_", "global ")):
            before = before[:-7]
        if _NOT_BEFORE.search(before) is None and not _is_argument(text, match.start()):
            return match
    return None


def _is_argument(text: str, start: int) -> bool:
    """Whether a place is inside the parentheses of a call, as in a line of a program: `fit(x, epoch=3)`."""
    opened = text.rfind("(", 0, start)
    return opened > 0 and (text[opened - 1].isalnum() or text[opened - 1] == "_") and ")" not in text[opened:start]
