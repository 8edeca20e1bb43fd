"""Names and numbers in a line: `loss: 0.3`, `loss=0.3`, `loss 0.3`, `Acc: 70 %`, `Accuracy: 9826/10000`."""

import re
from collections.abc import Iterator

from trainyard_protocol.lines.progress import MAX_METRICS, MAX_NAME

NUMBER = r"[-+]?(?:\d{1,40}(?:\.\d{0,40})?|\.\d{1,40})(?:[eE][-+]?\d{1,4})?|[-+]?(?:nan|inf(?:inity)?)"
OF_WHOLE = r"(?:\s{0,2}(%)|\s?/\s?(\d{1,15}))?"
"""Behind a number: a percent sign, or the whole that it is a part of."""

SHARES = frozenset("acc accuracy auc auroc dice f1 iou miou map ndcg precision recall rouge".split())  # noqa: SIM905
"""Metrics that are at most 1, or at most 100 if they are printed as percentages."""

_END = r"(?=[\s,;|)\]}'\"]|\.(?:\s|$)|$)(?!,\d)"
_VALUE = re.compile(
    rf"([:=])(\s{{0,8}})['\"]?(?:tensor\(|array\(|np\.float\d\d\()?({NUMBER}){OF_WHOLE}{_END}", re.IGNORECASE
)
_SPACED = re.compile(
    r"(?:loss|acc|accuracy|ppl|perplexity|bpc|bleu|rouge|auc|f1|precision|recall|iou|dice|psnr|ssim|fid|mse|mae|rmse"
    rf"|reward|return|score|error|err|lr)(?:@\d{{1,3}})?(?=[ \t])[ \t]{{1,8}}({NUMBER}){OF_WHOLE}{_END}"
)
_SPACED_START = re.compile(
    r"(?<![\w./=@-])(?:(?:train|training|val|valid|validation|eval|test|avg|average|mean)[ _])?"
    r"(?:[a-z0-9]{1,20}_){0,3}$"
)
_WORD = re.compile(r"[a-z_][\w./@-]*")
_WORDS = re.compile(r"[a-z0-9]+")

NO_METRICS = re.compile(
    "steps?|global_step|total_steps|epochs?|iterations?|iters?|batch|batches|batch_size|eta|v_num|version|port|pid|seed"
    "|rank|local_rank|world_size|line|lineno|code|status|exit_code|id|timestamp|ts"
)
"""Names that are no metrics in a line that was not written for Trainyard."""

_NO_NAME = re.compile(
    "an?|and|at|are|by|done|for|from|has|i|in|is|of|on|or|reached|so|the|then|this|to|with"
    "|critical|debug|error|fatal|info|notice|warning"
)
"""Words that are no part of a metric's name."""

_SPACED_REACH = 80


def pairs(text: str) -> Iterator[tuple[str, float]]:
    """Names and numbers in a text in lower case: `loss: 0.3`, `loss=0.3`, and `loss 0.3` for usual names of metrics."""
    count, end = 0, 0
    for match in _VALUE.finditer(text):
        name = _name_before(text[max(end, match.start() - MAX_NAME) : match.start()])
        end = match.end()
        is_glued = match[1] == ":" and not match[2] and match[3].lstrip("+-").isdecimal()  # localhost:8080
        if not name or is_glued or count == MAX_METRICS:
            continue
        if (value := value_of(name, match[3], match[4], match[5])) is not None:
            count += 1
            yield name, value
    for match in _SPACED.finditer(text):
        start = _SPACED_START.search(text[max(0, match.start() - _SPACED_REACH) : match.start()])
        if start is not None and count < MAX_METRICS:
            name = (start[0] + match[0][: match.start(1) - match.start()].rstrip()).replace(" ", "_")
            if (value := value_of(name, match[1], match[2], match[3])) is not None:
                count += 1
                yield name, value


def _name_before(text: str) -> str:
    """The name that a text ends with: up to three words, joined by underscores."""
    words: list[str] = []
    for word in reversed(text.rstrip().rstrip("'\"").split()[-3:]):
        bare = word.rpartition(":")[2].lstrip("([{<|'\"").rstrip(".")
        if _WORD.fullmatch(bare) is None or _NO_NAME.fullmatch(bare):
            break
        if not words and NO_METRICS.fullmatch(bare):
            return ""
        words.append(bare)
        if bare != word:
            break
    name = "_".join(reversed(words))
    return "" if NO_METRICS.fullmatch(name) else name


def value_of(name: str, number: str, percent: str | None, whole: str | None) -> float | None:
    """The value of a printed number: 70 % is 0.7, and 9826/10000 the quotient, if the name is that of such a metric."""
    if whole is not None:
        part, size = float(number), int(whole)
        return part / size if size and 0 <= part <= size and _is_share(name) else None
    if percent is None:
        return float(number)
    return float(f"{number}e-2") if number[-1:].isdigit() and "e" not in number.lower() else float(number) / 100


def _is_share(name: str) -> bool:
    return bool(set(_WORDS.findall(name)) & (SHARES | {"score"})) or "accuracy" in name
