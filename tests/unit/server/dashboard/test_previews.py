"""Previews of files that a job wrote, hostile ones among them."""

import json

from trainyard_server.dashboard.previews import MAX_BYTES, Preview, preview

LAYERS = [
    {"class_name": "InputLayer", "config": {"name": "input", "batch_shape": [None, 28, 28]}},
    {"class_name": "Dense", "config": {"name": "dense", "units": 10, "activation": "softmax", "trainable": True}},
]


def of(name: str, content: str | bytes, size: int | None = None) -> Preview:
    data = content.encode() if isinstance(content, str) else content
    return preview(name, len(data) if size is None else size, data[:MAX_BYTES], "page:{}".format, "content:{}".format)


def test_kinds_are_chosen_by_name_and_content() -> None:
    table: dict[tuple[str, str | bytes], str] = {
        ("log.txt", "a line\n"): "text",
        ("noname", "text"): "text",
        ("page.html", "<script>alert(1)</script>"): "text",
        ("weights.bin", b"\0\1\2"): "none",
        ("latin.txt", b"caf\xe9"): "none",
        ("a.json", '{"a": 1}'): "text",
        ("broken.json", '{"a": '): "text",
        ("a.csv", "a,b\n1,2\n"): "table",
        ("a.TSV", "a\tb\n"): "table",
        ("README.md", "# Title"): "markdown",
        ("a.svg", "<svg/>"): "image",
        ("a.JPEG", b"\xff\xd8"): "image",
        ("model.json", '{"model": "mlp", "input": {"shape": ["b", 64]}}'): "model",
        ("config.json", json.dumps({"class_name": "Sequential", "config": {"layers": LAYERS}})): "model",
    }
    wrong = {name: of(name, content).kind for (name, content), kind in table.items() if of(name, content).kind != kind}
    assert wrong == {}
    assert of("huge.png", b"", size=10**9).kind == "none"


def test_table_names_its_header_and_is_bounded() -> None:
    small = of("a.csv", 'name,loss\n"a, b",0.1\nshort\n').table
    assert small is not None
    assert (small.header, small.rows, small.notes) == (("name", "loss"), (("a, b", "0.1"), ("short", "")), ())
    large = of("a.csv", ",".join(map(str, range(100))) + "\n" + "1,2\n" * 1000).table
    assert large is not None
    assert (len(large.header), len(large.rows)) == (40, 200)
    assert large.notes == ("the first 200 rows", "the first 40 of 100 columns")
    cut = of("a.csv", b"a,b\n1,2\n3,", size=10**6)
    assert cut.table is not None
    assert cut.table.rows == (("1", "2"),)
    assert cut.left_out == 10**6 - 10


def test_models_are_short_tables() -> None:
    model = of("model/model.json", json.dumps({"model": "mlp", "input": {"shape": ["b", 64]}, "labels": list("ab")}))
    assert model.table is not None
    assert model.table.rows == (("model", "mlp"), ("input.shape", "b, 64"), ("labels", "a, b"))
    keras = of("config.json", json.dumps({"class_name": "Sequential", "config": {"layers": LAYERS}}))
    assert keras.table is not None
    assert keras.table.header == ("Layer", "Type", "Settings")
    assert keras.table.rows[1] == ("dense", "Dense", "units=10, activation=softmax")
    odd_ones: tuple[object, ...] = (
        [],
        {},
        {"class_name": 1, "config": []},
        {"class_name": "a", "config": {"layers": [1]}},
    )
    for odd in odd_ones:
        assert of("config.json", json.dumps(odd)).kind == "text"


def test_markdown_has_no_markup_of_its_own_and_loads_nothing_from_elsewhere() -> None:
    table = {
        "<script>alert(1)</script>": "&lt;script&gt;",
        "<img src=x onerror=alert(1)>": "&lt;img",
        "[a](javascript:alert(1))": "[a](javascript:alert(1))",
        "[a](https://example.com/x)": '<a href="https://example.com/x" rel="noopener nofollow noreferrer">a</a>',
        "[a](weights.bin)": '<a href="page:model/weights.bin">a</a>',
        "[a](../notes.md#x)": '<a href="page:notes.md">a</a>',
        "[a](../../etc)": "<a>a</a>",
        "[a](/new?config=x)": "<a>a</a>",
        "[a](//example.com/)": "<a>a</a>",
        "![words](plot.png)": '<img src="content:model/plot.png" alt="words" loading="lazy">',
        "![words](https://example.com/a.png)": "[image: words]",
        "![](data:image/png;base64,AAAA)": "[image: ",
        '![" onerror="x](plot.png)': 'alt="&#34; onerror=&#34;x"',
        "|a|\n|-|\n|1|": "<table>",
    }
    wrong = {text: str(of("model/README.md", text).markup) for text in table}
    wrong = {text: markup for text, markup in wrong.items() if table[text] not in markup}
    assert wrong == {}


def test_markdown_that_would_take_seconds_is_shown_as_text() -> None:
    size = 64 * 1024
    units = {
        "prose": (
            "A *word* of [prose](a.md) with `code` " + "and more " * 20 + "\n\n- an item\n\n|a|b|\n|-|-|\n|1|2|\n\n",
            "markdown",
        ),
        "brackets": ("![", "text"),
        "links": ("[a](b) ", "text"),
        "emphasis": ("*a **b ", "text"),
        "items": ("- a\n", "text"),
        "cells": ("a|b\n-|-\n", "text"),
        "quotes around a fence": ("> ===\n:```\n&amp;>---\n", "text"),
    }
    table = "|" + "a|" * 160 + "\n|" + "-|" * 160 + "\n"
    shown = {name: of("a.md", (unit * (size // len(unit)))[:size]).kind for name, (unit, _) in units.items()}
    assert shown == {name: kind for name, (_, kind) in units.items()}
    assert of("a.md", table + "|\n" * 31_000).kind == "text", "each of its lines has 160 cells"


def test_hostile_content_makes_bounded_previews() -> None:
    deep = "[" * 500 + ",".join("1" * 100_000) + "]" * 500
    inputs = {
        "deep.json": "[" * MAX_BYTES,
        "wide.json": deep,
        "number.json": "1" * MAX_BYTES,
        "brackets.md": "![" * 32_000,
        "nested.md": ">" * 60_000,
        "long.csv": '"' + "a" * (MAX_BYTES - 1),
        "columns.csv": "," * (MAX_BYTES - 1),
        "rows.csv": "\n" * (MAX_BYTES - 1),
        "model.json": json.dumps({str(number): {"a": {"b": {"c": {"d": 1}}}} for number in range(5000)}),
        "lines.md": "a\n" * 32_000,
    }
    for name, content in inputs.items():
        shown = of(name, content)
        table = shown.table
        cells = sum(map(len, (table.header, *table.rows))) if table is not None else 0
        assert len(shown.text) <= MAX_BYTES + 1, name
        assert cells <= 201 * 40, name
