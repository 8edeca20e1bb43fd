"""Results that a program prints without a step: `Test accuracy: 0.93`, `Accuracy: 9826/10000 (98%)`, `RMSE = 3.2`.

Such a line has nothing but pairs, perhaps behind a logger's prefix or a label such as `Test set:`, and the first pair's
name has a usual word of a metric. So prose, timings, sizes, versions, errors and configs are no results.
"""

import re
from collections.abc import Iterator

from trainyard_protocol.lines.pairs import NUMBER, OF_WHOLE, SHARES, value_of
from trainyard_protocol.lines.progress import (
    HIGHER_WORDS,
    LOWER_WORDS,
    MAX_METRICS,
    MAX_NAME,
    OTHER_WORDS,
    VALIDATION_WORDS,
)

_MAX_LINE = 300
_MAX_WORDS = 7

_METRICS = LOWER_WORDS | HIGHER_WORDS | {"return"}
_AMBIGUOUS = frozenset({"cost", "err", "error", "return"})
"""Words that are a metric beside one of _QUALIFIERS only."""
_SPLITS = VALIDATION_WORDS | {"testing", "train", "training"}
_QUALIFIERS = _SPLITS | frozenset(
    "absolute average avg best classification cumulative cv episode final generalization log mean median percentage"  # noqa: SIM905
    " prediction rate reconstruction relative rms root square squared".split()
)
_AFTER = frozenset("avg macro mean micro percent pr rate roc score value weighted".split())  # noqa: SIM905
"""Words behind that of the metric: `R2 score`, `F1 macro`."""
_REFUSED = OTHER_WORDS | frozenset(
    "and are at be by coef computing config counts debug did done error exception exit expected export fatal from"  # noqa: SIM905
    " function goal has have http if in info initial is it limit loading maximum minimum new no not num number old or"
    " patience previous required so target than then this threshold to tolerance using warning was we with you".split()
)
_ARTICLES = frozenset({"a", "my", "our", "the", "your"})
_LABELS = _SPLITS | frozenset(
    "best final metrics model network overall performance result results score scores set summary".split()  # noqa: SIM905
)

_HINT = re.compile(
    "acc|auc|auroc|bleu|cer|cost|dice|err|f1|fid|iou|loss|mae|map|mape|mse|ndcg|nll|perplexity|ppl|precision|psnr|r2|r²"
    r"|r\^2|recall|return|reward|rouge|score|ssim|wer"
)
RESULT_ENDS = frozenset("0123456789%).!} \tsnNfF│")
"""Last characters of lines with results: digits, a unit, nan, inf, or the edge of a table."""
_STAMP = re.compile(
    r"\[?\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?Z?\]?\s{0,3}[-|:]?\s{0,3}"
    r"|I\d{4} [\d:.]{8,20}\s{1,8}[^\]]{1,80}\]"
)
_LEVEL = re.compile(r".{0,80}?\b(?:INFO|DEBUG)\b[\]:|\s-]{1,12}")
_PLACE = re.compile(r"[\w.<>]{1,80}(?::[\w.<>]{1,80}){0,3}(?: -|:) ?(?=.{0,200}[:=])")
_BULLET = re.compile(r"\s{0,3}(?:(?:[*•-]|[=-]>) {1,4})?\s{0,3}")
_AROUND = re.compile(r"[ \t]{0,40}[:=](?![:=])[ \t]{0,40}")
_SEPARATOR = re.compile(r"[ \t]{0,8}[,;|][ \t]{1,8}|[ \t]{0,8}\|[ \t]{0,8}|\t[ \t]{0,8}| [ \t]{1,8}| [-–] ")
_UNSEPARATED = re.compile(
    rf"(: (?:{NUMBER})%?) (?=[A-Za-z][\w@^./-]{{0,40}}(?: [\w@^./-]{{1,40}}){{0,4}}: )", re.IGNORECASE
)
_VALUE = (
    rf"(?:tensor\(|np\.float\d\d\()?({NUMBER})\)?{OF_WHOLE}(?: ?\([^()]{{1,40}}\)| ?(?:±|\+/-|\+-) ?\d[\d.]{{0,20}}%?)?"
)
_RESULT = re.compile(rf"{_VALUE}\s{{0,4}}[.!]?\s{{0,8}}", re.IGNORECASE)
_TAIL = re.compile(
    r"[ \t]{0,40}+(?:tensor\(|np\.float\d\d\()?['\"]?[-+]?[\dnNiI.][\w.+-]{0,40}+\)?(?: ?/ ?\d{1,15}+)? {0,2}%?"
    r"(?: ?\([^()]{1,40}\)| ?(?:±|\+/-|\+-) ?[\d.]{1,20}%?)?[ \t]{0,4}+[.!}'\"]{0,3}+[ \t]{0,8}\Z"
)
"""A superset of _RESULT that fails sooner, with a unit behind the number."""
_NAME = re.compile(r"([A-Za-z][\w@^²./ -]{0,99})(?:\(([A-Za-z][\w -]{0,30})\))?")
_SCOPE = re.compile(r" (?:of|on|for|over) (.{1,60})$", re.IGNORECASE)
_WORD = re.compile(r"[a-z0-9]+")
_ROW = re.compile(rf"│\s{{1,80}}([\w./@-]{{1,{MAX_NAME}}})\s{{1,80}}│\s{{1,80}}({NUMBER})\s{{1,80}}│\s{{0,8}}")


def may_have_results(text: str) -> bool:
    """Whether a line that ends with one of RESULT_ENDS may be one of results."""
    at = max(text.rfind(":"), text.rfind("=")) + 1
    if at == 0 or len(text) > _MAX_LINE:
        return text[:1] == "│" and _ROW.fullmatch(text) is not None
    return _TAIL.match(text, at) is not None and _HINT.search(text.lower()) is not None


def final_results(text: str) -> dict[str, float]:
    """The metrics of a line that has results and nothing else, by their names; empty for any other line."""
    if (row := _ROW.fullmatch(text)) is not None:
        name = _metric_name(row[1], "")
        return {name: float(row[2])} if name else {}
    if text[-1:] not in RESULT_ENDS or not may_have_results(text):
        return {}
    is_object = text.startswith("{") and text.rstrip().endswith("}")
    if is_object:
        text = text.strip()[1:-1].replace("'", "").replace('"', "")
    elif text.startswith("    ") and "=" in text:  # a line of source in a traceback
        return {}
    metrics: dict[str, float] = {}
    split = ""
    for count, (segment, is_certain) in enumerate(_segments(text if is_object else _without_prefix(text))):
        found = _result(segment, split)
        if found is not None and len(metrics) < MAX_METRICS:
            name, value, split = found
            metrics[name] = value
        elif count == 0 or is_object or not is_certain:
            return {}
    return metrics


def _without_prefix(text: str) -> str:
    """The text behind a logger's prefix, and behind a bullet."""
    if (stamp := _STAMP.match(text)) is not None:
        text = text[stamp.end() :].lstrip()
    if (level := _LEVEL.match(text)) is not None:
        text = text[level.end() :]
        if (place := _PLACE.match(text)) is not None and not _metric_name(place[0].rstrip(": -"), ""):
            text = text[place.end() :]
    bullet = _BULLET.match(text)
    return text[bullet.end() :] if bullet is not None else text


def _segments(text: str) -> Iterator[tuple[str, bool]]:
    """The pairs of a text, and whether a separator stands before each of them."""
    for part in _SEPARATOR.split(_AROUND.sub(": ", text.strip())):
        first, *further = _UNSEPARATED.sub("\\1\n", part).split("\n")
        yield first, True
        for segment in further:
            yield segment, False


def _result(segment: str, split: str) -> tuple[str, float, str] | None:
    """Name and value of a pair, and the split of the data in the label before it, or before an earlier one; None for
    what is no result."""
    *labels, name, printed = segment.split(": ") if ": " in segment else ("", "")
    if (match := _RESULT.fullmatch(printed)) is None:
        return None
    for label in labels:
        words = _WORD.findall(label.lower())
        if not set(words) & _LABELS or set(words) & _REFUSED or len(words) > _MAX_WORDS:
            return None
        split = next((word for word in words if word in _SPLITS), split)
    metric = _metric_name(name.strip(), split)
    value = value_of(metric, *match.groups()) if metric else None
    if value is None or not (match[2] or match[3] or _is_plausible(metric, value, match[1])):
        return None
    return metric, value, split


def _is_plausible(name: str, value: float, printed: str) -> bool:
    """Whether a number without a percent sign can be a value of this metric: not `precision: 16`."""
    words = set(_WORD.findall(name))
    if words & {"r2"}:
        return not value > 1
    if not words & SHARES and "accuracy" not in name:
        return words != {"score"} or "." in printed
    return not value > 1 or (value <= 100 and ("." in printed or "acc" in name))


def _metric_name(text: str, split: str) -> str:
    """The name of a metric in lower case with underscores; "" for any other name."""
    scope = _SCOPE.search(text)
    if scope is not None:  # Accuracy of the network on the 10000 test images
        around = _WORD.findall(scope[1].lower())
        if not set(around) & _LABELS:
            return ""
        text, split = text[: scope.start()], next((word for word in around if word in _SPLITS), split)
    match = _NAME.fullmatch(text)
    if match is None:
        return ""
    parts = match[1].lower().replace("r^2", "r2").replace("r²", "r2").split()
    if parts and parts[0] in _ARTICLES:
        del parts[0]
    if match[2]:
        inner = match[2].lower().split()
        split = next((word for word in inner if word in _SPLITS), split)
        parts += [word for word in inner if word in _AFTER]
    name = "_".join(parts)
    words = _WORD.findall(name)
    if not _is_metric(words, match[1]):
        return ""
    if split and not set(words) & _SPLITS:
        name = f"{split}_{name}"
    return name if len(name) <= MAX_NAME else ""


def _is_metric(words: list[str], printed: str) -> bool:
    """Whether words in lower case name a metric: the last ones do, and none of them says otherwise."""
    places = [at for at, word in enumerate(words) if word in _METRICS or word.endswith(("loss", "accuracy"))]
    if not places or len(words) > _MAX_WORDS:
        return False
    metric = words[places[-1]]
    others = words[: places[-1]] + words[places[-1] + 1 :]
    if _REFUSED.intersection(others) or not all(word in _AFTER or word.isdecimal() for word in words[places[-1] + 1 :]):
        return False
    if metric == "map":
        return "map" not in printed
    return metric not in _AMBIGUOUS or not _QUALIFIERS.isdisjoint(others)
