"""Filters and orders of MLflow's searches: what they mean, and what is refused with the term named."""

import pytest

from trainyard_protocol.errors import InvalidArgument
from trainyard_server.capabilities.tracking.search.mlflow_filter import (
    EXPERIMENTS,
    MAX_TERMS,
    MAX_VALUES,
    MODELS,
    RUNS,
    FieldKind,
    Operand,
    SearchGrammar,
    SearchTerm,
    is_like,
    matches,
    parse_filter,
    parse_orders,
)

METRIC, PARAM, TAG, ATTRIBUTE, DATASET = FieldKind


def terms(text: str, grammar: SearchGrammar = RUNS) -> list[tuple[FieldKind, str, str, Operand]]:
    return [(*term.field, term.op, term.value) for term in parse_filter(text, grammar)]


def test_filters_mean_what_mlflow_has_them_mean() -> None:
    cases: dict[str, list[tuple[FieldKind, str, str, Operand]]] = {
        "": [],
        "  ": [],
        "metrics.x > 0.5": [(METRIC, "x", ">", 0.5)],
        "metrics.val/loss<=-1e-3;": [(METRIC, "val/loss", "<=", -0.001)],
        "metrics.`a b` != 1 AND params.\"y z\" = 'a'": [(METRIC, "a b", "!=", 1.0), (PARAM, "y z", "=", "a")],
        "`params`.`k` = \"it's\" and parameter.n='it''s'": [(PARAM, "k", "=", "it's"), (PARAM, "n", "=", "it's")],
        "tags.k LIKE '%a%' aNd tag.mlflow.user ilike 'A_'": [
            (TAG, "k", "LIKE", "%a%"),
            (TAG, "mlflow.user", "ILIKE", "A_"),
        ],
        "tags.a IS NULL AND params.b is not null": [(TAG, "a", "IS NULL", None), (PARAM, "b", "IS NOT NULL", None)],
        "run_id IN ('a', 'b',) AND attributes.run_id not in (\"c\")": [
            (ATTRIBUTE, "run_id", "IN", ("a", "b")),
            (ATTRIBUTE, "run_id", "NOT IN", ("c",)),
        ],
        "status = 'FINISHED'": [(ATTRIBUTE, "status", "=", "FINISHED")],
        "attr.start_time > 1700000000000": [(ATTRIBUTE, "start_time", ">", 1_700_000_000_000)],
        "run.created<5 and attribute.\"Run name\" = 'n'": [
            (ATTRIBUTE, "start_time", "<", 5),
            (ATTRIBUTE, "run_name", "=", "n"),
        ],
        "datasets.digest = 'd' AND dataset.context LIKE 'tr%'": [
            (DATASET, "digest", "=", "d"),
            (DATASET, "context", "LIKE", "tr%"),
        ],
    }
    wrong = {text: terms(text) for text, meaning in cases.items() if terms(text) != meaning}
    assert wrong == {}
    assert terms("name LIKE 'p%' AND tags.a = 'b'", EXPERIMENTS) == [
        (ATTRIBUTE, "name", "LIKE", "p%"),
        (TAG, "a", "=", "b"),
    ]
    assert terms("creation_time > 5 AND model_type = 'm'", MODELS) == [
        (ATTRIBUTE, "creation_timestamp", ">", 5),
        (ATTRIBUTE, "model_type", "=", "m"),
    ]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("metrics.a > 'x'", "with a number"),
        ("metrics.a LIKE 'x'", "compares metric"),
        ("metrics.a IS NULL", "compares metric"),
        ("params.a > '1'", "compares parameter"),
        ("params.a = 1", "with a text in quotes"),
        ("params.a = b", "with a text in quotes"),
        ("start_time = 'x'", "with a number"),
        ("a = 'x'", "no attribute"),
        ("attributes.a = 'x'", "no attribute"),
        ("foo.a = 'x'", "has fields of"),
        ("dataset.source = 'x'", "name, digest and context"),
        ("params.a = 'x' OR params.b = 'y'", "joins comparisons by AND"),
        ("params.a = 'x' params.b = 'y'", "joins comparisons by AND"),
        ("(params.a = 'x')", "begins a comparison with a field"),
        ("params.a", "ends where an operator is missing"),
        ("params.a =", "ends where a value is missing"),
        ("params.a IN ()", "texts in quotes"),
        ("params.a IN 'x'", "in parentheses"),
        ("params.a IN ('x' 'y')", "by commas"),
        ("params.a NOT LIKE 'x'", "IN here"),
        ("params.a = 'x", "cannot be read from"),
        ("params.a = 'x' AND", "is missing"),
        (" AND ".join(["params.a = 'x'"] * (MAX_TERMS + 1)), "at most"),
        ("run_id IN (" + ",".join(["'a'"] * (MAX_VALUES + 1)) + ")", "at most"),
        ("params.a LIKE '" + "%" * 2000 + "'", "at most"),
        ("params.a = '" + "x" * 40_000 + "'", "at most"),
    ],
)
def test_what_cannot_be_read_is_refused_with_its_term(text: str, problem: str) -> None:
    with pytest.raises(InvalidArgument, match=problem):
        parse_filter(text, RUNS)


def test_orders_have_a_field_and_a_direction() -> None:
    texts = ["metrics.x DESC", "params.`a b`", "attributes.start_time asc", "Created", "Run Name desc", 'tags."k" ASC']
    assert [(*order.field, order.descending) for order in parse_orders(texts, RUNS)] == [
        (METRIC, "x", True),
        (PARAM, "a b", False),
        (ATTRIBUTE, "start_time", False),
        (ATTRIBUTE, "start_time", False),
        (ATTRIBUTE, "run_name", True),
        (TAG, "k", False),
    ]
    for wrong in ("x", "metrics.x UP", "metrics.x DESC DESC", "dataset.name", "", "'a'"):
        with pytest.raises(InvalidArgument):
            parse_orders([wrong], RUNS)


def test_patterns_match_as_in_sql_and_in_bounded_time() -> None:
    cases = [
        ("abc", "abc", True),
        ("abc", "a%", True),
        ("abc", "%c", True),
        ("abc", "%b%", True),
        ("abc", "a_c", True),
        ("abc", "_%_%_", True),
        ("ab", "_%_%_", False),
        ("abc", "b%", False),
        ("a.c", "a.c", True),
        ("abc", "a.c", False),
        ("aab", "a%ab", True),
        ("ab", "ab%ab", False),
        ("a\nb", "a%b", True),
        ("ABC", "abc", False),
        ("", "%", True),
        ("a" * 8000, "%a" * 400 + "%b", False),
    ]
    assert [case for case in cases if is_like(case[0], case[1], any_case=False) != case[2]] == []
    assert is_like("ABC", "a%c", any_case=True)


def test_missing_values_meet_is_null_alone() -> None:
    def meets(left: str | float | None, text: str) -> bool:
        term: SearchTerm = parse_filter(text, RUNS)[0]
        return matches(term.op, left, term.value)

    assert meets(None, "params.a IS NULL")
    assert not meets(None, "params.a IS NOT NULL")
    assert not meets(None, "params.a != 'x'")
    assert meets("y", "params.a != 'x'")
    assert meets("y", "params.a IN ('x', 'y')")
    assert not meets("y", "params.a NOT IN ('x', 'y')")
    assert meets(2.0, "metrics.a >= 2")
    assert not meets(2.0, "metrics.a < 2")
