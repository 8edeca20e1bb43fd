"""The table of benchmarks: rows, ratios and the page, with figures that nobody measured."""

import json
from pathlib import Path

from benchmarks import report
from benchmarks.rows import Row, Samples, interleaved


def test_rows_have_names_of_their_own_and_variants_are_rows() -> None:
    from benchmarks.__main__ import ROWS  # takes seconds, which each worker would pay that collects this module

    names = [row.name for row in ROWS]
    assert len(names) == len(set(names))
    assert set(names) >= report.VARIANTS


def test_table_of_the_page_is_replaced_and_has_no_variants(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Page\n<!-- measured -->\nof the run before\n<!-- end -->\nAfter.\n", encoding="utf-8")
    samples = Samples([2.0, 3.0, 40.0], [1.0, 1.0, 10.0], "ms")

    def row(name: str, what: str, reach: float) -> tuple[Row, Samples]:
        return Row(name, what, "b", reach, lambda _quick: samples), samples

    report.publish([row("slow", "a", 2.0), row(min(report.VARIANTS), "variant", 4.0)], page)
    text = page.read_text(encoding="utf-8")
    assert "| a | b | 3.00 | at most 2: **missed** |" in text
    assert "Of these rows 0 reach their goal and 1 miss it; of all 2, 1 reach their goal and 1 miss it." in text
    assert "variant" not in text
    assert "of the run before" not in text
    assert text.startswith("# Page\n<!-- measured -->\n| what |")
    assert text.endswith("<!-- end -->\nAfter.\n")


def test_sides_are_taken_by_turns_without_the_warm_up() -> None:
    order: list[str] = []
    figures = iter(range(1, 100))

    def side(name: str) -> float:
        order.append(name)
        return float(next(figures))

    samples = interleaved(lambda: side("a"), lambda: side("b"), rounds=2, unit="s", warm_up=1)
    assert order == ["a", "b", "b", "a", "a", "b"]
    assert samples == Samples([4.0, 5.0], [3.0, 6.0], "s")


def test_report_has_ratios_of_rounds_and_says_what_is_missed(tmp_path: Path) -> None:
    def samples(_quick: bool) -> Samples:
        return Samples([2.0, 3.0, 40.0], [1.0, 1.0, 10.0], "ms")

    rows = (
        Row("slow", "a", "b", 2.0, samples, bound="itself"),
        Row("rate", "c", "d", 2.0, samples, is_rate=True),
        Row("figure", "e", "f", 2.5, samples, is_figure=True),
    )
    later = Row("later", "e", "f", 0.3, lambda _quick: Samples([1.5, 1.25], [1.25, 1.0], "s", is_difference=True))
    results = [(row, row.run(True)) for row in (*rows, later)]
    left_out = [(rows[0], "There is no engine.")]
    report.write(results, tmp_path / "page.md", tmp_path / "results" / "data.json", left_out=left_out)
    lines = (tmp_path / "page.md").read_text(encoding="utf-8").splitlines()
    assert "| a | b | 3.00 | 2.00 to 4.00 | at most 2: **missed** | 3 : 1 ms | itself |" in lines
    assert "| c | d | 3.00 | 2.00 to 4.00 | at least 2 | 3 : 1 ms |  |" in lines
    assert "| e | f | +0.25 s | +0.25 s to +0.25 s | at most 0.3 s | 1.38 : 1.12 s |  |" in lines
    assert "- Left out: a. There is no engine." in lines
    assert "| e | f | 3 ms | 2 to 40 | at most 2.5 ms: **missed** | 3 : 1 ms |  |" in lines
    data = json.loads((tmp_path / "results" / "data.json").read_text(encoding="utf-8"))
    assert report.read(tmp_path / "results" / "data.json")["later"] == later.run(True)
    assert data["rows"]["slow"]["reached"] is False
    assert data["rows"]["rate"]["figure"] == 3.0
