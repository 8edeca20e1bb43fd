"""Rounds of boosting, as XGBoost, LightGBM and CatBoost print them.

[0]\ttrain-logloss:0.5234\teval-logloss:0.61                XGBoost; a mean of folds has its deviation: 0.52+0.01
[10]\tvalid_0's l2: 0.3\tvalid_0's auc: 0.9                 LightGBM, which counts from 1: valid_0_l2, valid_0_auc
0:\tlearn: 0.6832\ttest: 0.69\tbest: 0.69 (0)\ttotal: 1ms   CatBoost: learn, test
"""

import re

from trainyard_protocol.lines.pairs import NUMBER
from trainyard_protocol.lines.progress import MAX_METRICS, MAX_NAME

_ROUND = re.compile(r"\[(\d{1,9})\]\t")
_CATBOOST_ROUND = re.compile(r"(\d{1,9}):\t(?=learn: |test: )")
_METRIC = re.compile(
    rf"([A-Za-z_][\w@./=\s'()-]{{0,{MAX_NAME - 1}}}):\s?({NUMBER})(?:\s?\+\s?[\d.e-]{{1,20}})?\s{{0,8}}", re.IGNORECASE
)
_BEST = re.compile(r"best iteration is:\s{0,8}$", re.IGNORECASE)


def is_round(text: str) -> bool:
    """Whether a line begins as one of a round."""
    return _ROUND.match(text) is not None or _CATBOOST_ROUND.match(text) is not None


def announces_best(text: str) -> bool:
    """Whether LightGBM's next line repeats the best round."""
    return _BEST.search(text) is not None


def round_of(text: str) -> tuple[int, dict[str, float]] | None:
    """The round of a line and its metrics; None for any other line."""
    start = _ROUND.match(text) or _CATBOOST_ROUND.match(text)
    if start is None:
        return None
    is_catboost = start.re is _CATBOOST_ROUND
    metrics: dict[str, float] = {}
    for part in text[start.end() :].rstrip().split("\t"):
        if is_catboost and not part.startswith(("learn: ", "test")):
            continue
        match = _METRIC.fullmatch(part)
        if match is None:
            return None
        if len(metrics) < MAX_METRICS:
            metrics["_".join(match[1].lower().replace("'s ", "_").split())] = float(match[2])
    return (int(start[1]), metrics) if metrics else None
