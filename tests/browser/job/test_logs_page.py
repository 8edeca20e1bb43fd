"""The log of a job: following, search, links, and no line lost."""

import random
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, Request, expect

from browser.browser_support import DashboardServer, Open, axe
from integration.api.api_support import ScriptedAgent, line
from trainyard_protocol.states import Reason
from trainyard_protocol.wire.logs import LogChunk, LogLine
from trainyard_protocol.wire.sync import RunOrder

PATH = "/projects/p/jobs/cnn/logs"
GANG = {"workerCount": "3", "workerType": "local-1"}
TASKS = ("master-replica-0", *(f"worker-replica-{n}" for n in range(3)))


def started(dashboard: DashboardServer, **training_input: Any) -> tuple[ScriptedAgent, RunOrder]:
    agent = dashboard.agent(cpus=8)
    return agent, dashboard.started(agent, "cnn", labels={"team": "vision"}, **training_input)


def ship(
    dashboard: DashboardServer, agent: ScriptedAgent, run: RunOrder, *lines: LogLine, task: str = TASKS[0]
) -> None:
    """Lines with times and streams of their own."""
    start = agent.shipped.get((run.run_id, task), 0)
    agent.shipped[run.run_id, task] = agent.ship(task, LogChunk.of(start, lines), run).next


def training(dashboard: DashboardServer, agent: ScriptedAgent, run: RunOrder, steps: int = 40) -> None:
    """Log lines of a gang that trains."""
    dice = random.Random(4)
    for step in range(steps):
        task = TASKS[step % 4]
        at = f"2026-11-20T14:{step // 60:02}:{step % 60:02}.250000Z"
        texts = [f"step {step * 25:>6}  loss {2.3 * 0.97**step:.4f}  lr 1.0e-03  {dice.randint(900, 990)} examples/s"]
        if step % 13 == 7:
            texts.append("WARNING:absl:the input pipeline is slower than the step; see data.prefetch")
        if step % 17 == 11:
            texts.append("\x1b[32mcheckpoint\x1b[0m saved to \x1b[1mgs://models/cnn/step_275\x1b[0m")
        ship(dashboard, agent, run, *(LogLine(time=at, stream="stdout", text=text) for text in texts), task=task)


def shown(page: Page) -> list[int]:
    """The cursors of the rows in the page, in their order."""
    rows = "[...document.querySelectorAll('.ln')].map((row) => Number(row.dataset.c))"
    cursors: list[int] = page.evaluate(rows)
    return cursors


def messages(page: Page) -> list[str]:
    return page.locator(".ln .msg").all_text_contents()


def following(page: Page) -> None:
    expect(page.locator("#log-status")).to_contain_text("following")


def test_log_of_a_gang(dashboard: DashboardServer, open_page: Open) -> None:
    agent, run = started(dashboard, **GANG)
    training(dashboard, agent, run)
    trace = ["Traceback (most recent call last):", '  File "/app/trainer/task.py", line 88, in <module>', "    main()",
             "ValueError: loss is not finite at step 1000: nan"]  # fmt: skip
    at = "2026-11-20T14:00:41Z"
    ship(dashboard, agent, run, *(LogLine(time=at, stream="stderr", text=text) for text in trace), task=TASKS[2])
    page = open_page(PATH)
    following(page)
    expect(page.locator(".ln").last).to_contain_text("ValueError")
    page.get_by_label("Search").fill("loss")
    expect(page.locator("mark").first).to_be_visible()
    page.get_by_role("button", name="First error").click()
    expect(page.locator(".ln.marked")).to_contain_text("Traceback")
    page.locator("[data-task=worker-replica-1]").click()
    expect(page.locator(".ln .by").first).to_have_text("worker-1")
    assert axe(page) == []
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "nothing is wider than the window"


def test_every_line_is_shown_once_over_a_restart_of_the_server(
    dashboard: DashboardServer, open_page: Open, tmp_path: Path
) -> None:
    """While lines come: a page that is hidden and seen again, and a server that goes and comes back."""
    agent, run = started(dashboard)
    page = open_page(PATH)
    following(page)
    agent.log(*(f"first {n}" for n in range(300)), run=run)
    expect(page.locator(".ln").last).to_contain_text("first 299")
    page.evaluate("dispatchEvent(new Event('pagehide'))")
    agent.log(*(f"hidden {n}" for n in range(300)), run=run)
    page.wait_for_timeout(700)
    expect(page.locator(".ln").last).to_contain_text("first 299")
    page.evaluate("dispatchEvent(new Event('pageshow'))")
    expect(page.locator(".ln").last).to_contain_text("hidden 299")

    dashboard.stop()
    expect(page.locator("#banner")).to_contain_text("The server does not answer")
    expect(page.locator(".ln").last).to_contain_text("hidden 299")
    with dashboard.again() as api:
        agent.server = api
        agent.sync()
        agent.log(*(f"later {n}" for n in range(300)), run=run)
        expect(page.locator(".ln").last).to_contain_text("later 299")
        expect(page.locator("#banner")).to_be_hidden()
        agent.log("the last one", run=run)
        agent.exit(run=run)
        expect(page.locator("#log-end")).to_contain_text("End of the log:")
        total = api.use_cases.backend.logs.extent("p", "cnn")[1]
        assert shown(page) == list(range(1, total + 1))
        texts = [f"{word} {n}" for word in ("first", "hidden", "later") for n in range(300)]
        assert [text for text in messages(page) if text.split()[0] in ("first", "hidden", "later")] == texts
        page.errors.clear()  # type: ignore[attr-defined]  # the browser says that the server was away


def test_end_is_shown_once_the_last_line_is_drawn(dashboard: DashboardServer, open_page: Open) -> None:
    agent, run = started(dashboard)
    page = open_page(PATH)
    following(page)
    page.evaluate("() => { window.drawn = []; window.requestAnimationFrame = (draw) => drawn.push(draw); }")
    finished: list[Request] = []
    for how in ("requestfinished", "requestfailed"):  # whoever hangs up first
        page.on(how, lambda request: finished.append(request))
    agent.log("the last one", run=run)
    agent.exit(run=run)
    for _ in range(300):
        page.wait_for_timeout(50)
        if any("follow=true" in request.url for request in finished):
            break
    page.evaluate("document.dispatchEvent(new Event('trainyard:parts'))")
    expect(page.locator("#log-end")).to_be_hidden()
    expect(page.locator(".ln", has_text="the last one")).to_have_count(0)
    page.evaluate("for (const draw of drawn) draw()")
    expect(page.locator("#log-end")).to_contain_text("End of the log:")
    expect(page.locator(".ln").last).to_contain_text("Job completed successfully.")


def test_reader_who_scrolls_back_keeps_the_position(dashboard: DashboardServer, open_page: Open) -> None:
    agent, run = started(dashboard)
    agent.log(*(f"line {n}" for n in range(1500)), run=run)
    page = open_page(PATH)
    following(page)
    expect(page.locator(".ln").last).to_contain_text("line 1499")
    view = page.locator("#log-view")
    view.hover()
    page.mouse.wheel(0, -900)
    expect(page.locator("#log-status")).to_contain_text("paused")
    page.wait_for_timeout(300)
    before = view.evaluate("(view) => view.scrollTop")
    agent.log(*(f"new {n}" for n in range(30)), run=run)
    newest = page.locator("#log-newest")
    expect(newest).to_have_text("30 new lines ↓")
    assert view.evaluate("(view) => view.scrollTop") == before
    for _ in range(60):  # earlier lines come as the top comes near
        page.mouse.wheel(0, -4000)
        page.wait_for_timeout(50)
        if page.locator("#log-top").text_content() == "The beginning of the log":
            break
    expect(page.locator("#log-top")).to_have_text("The beginning of the log")
    assert shown(page) == list(range(1, 1537))
    page.keyboard.press("End")
    expect(newest).to_be_hidden()
    following(page)
    agent.log("now", run=run)
    expect(page.locator(".ln").last).to_contain_text("now")
    expect(page.locator(".ln").last).to_be_in_viewport()
    page.keyboard.press("f")
    expect(page.locator("#log-follow")).to_have_attribute("aria-pressed", "false")
    agent.log("later", run=run)
    expect(newest).to_have_text("1 new line ↓")
    newest.click()
    expect(page.locator(".ln").last).to_be_in_viewport()


def test_large_log_is_loaded_in_parts(dashboard: DashboardServer, open_page: Open) -> None:
    agent, run = started(dashboard)
    for start in range(0, 30_000, 1000):
        agent.log(*(f"line {start + n} of many" for n in range(1000)), run=run)
    total = 30_006
    page = open_page(PATH)
    following(page)
    expect(page.locator(".ln").last).to_contain_text("line 29999 of many")
    rows = shown(page)
    assert len(rows) <= 2000
    assert rows == list(range(total - len(rows) + 1, total + 1))
    page.keyboard.press("Home")
    expect(page.locator(".ln").first).to_contain_text("Validating job requirements")
    view = page.locator("#log-view")
    for _ in range(200):  # later ones are loaded near the end, and the first ones dropped
        view.evaluate("(view) => { view.scrollTop = view.scrollHeight; }")
        page.wait_for_timeout(30)
        if page.evaluate("Number(document.querySelector('.ln').dataset.c) > 1"):
            break
    rows = shown(page)
    assert len(rows) <= 20_000
    assert rows[0] > 1
    assert rows == list(range(rows[0], rows[0] + len(rows))), "no gap"
    page.goto("about:blank")
    page.goto(f"{PATH}#L15000")
    expect(page.locator(".ln.marked")).to_be_in_viewport()
    expect(page.locator(".ln.marked")).to_contain_text("line 14993 of many")
    expect(page.locator("#log-newest")).to_have_text("Newest lines ↓")
    page.locator("#log-newest").click()
    expect(page.locator(".ln").last).to_contain_text("line 29999 of many")
    for start in range(0, 24_000, 1000):  # and while it follows, the first ones go
        agent.log(*(f"more {start + n}" for n in range(1000)), run=run)
    expect(page.locator(".ln").last).to_contain_text("more 23999")
    rows = shown(page)
    assert len(rows) <= 20_000
    assert rows == list(range(rows[0], total + 24_001)), "no gap, none twice"


def test_filters_are_in_the_address_and_select_lines(
    dashboard: DashboardServer, open_page: Open, tmp_path: Path
) -> None:
    agent, run = started(dashboard, **GANG)
    training(dashboard, agent, run)
    ship(
        dashboard,
        agent,
        run,
        LogLine(time="2026-11-20T15:00:00Z", stream="stderr", text="error: boom <b>"),
        task=TASKS[3],
    )
    page = open_page(PATH)
    following(page)
    page.locator("[data-task=worker-replica-2]").click()
    page.locator("[data-task=worker-replica-0]").click()
    expect(page.locator(".ln .by").first).to_have_text("worker-0")
    assert set(page.locator(".ln .by").all_text_contents()) == {"worker-0", "worker-2"}
    page.get_by_label("Severity").select_option("WARNING")
    expect(page.locator(".ln")).to_have_count(2 + 1)
    page.get_by_label("Search").fill("PIPELINE")
    page.get_by_label("Only matches").check()
    expect(page.locator(".ln")).to_have_count(2)
    expect(page.locator("mark")).to_have_text(["pipeline"] * 2)
    page.wait_for_url("**/logs?task=worker-replica-2&task=worker-replica-0&severity=WARNING&search=PIPELINE&only=yes*")
    with page.expect_download() as waiting:
        page.get_by_role("link", name="Download").click()
    assert waiting.value.suggested_filename == "cnn.log"
    waiting.value.save_as(tmp_path / "log")
    rows = (tmp_path / "log").read_text().splitlines()
    assert len(rows) == 2
    assert all("1/worker-replica-" in row and "input pipeline" in row for row in rows)
    page.reload()
    expect(page.locator(".ln")).to_have_count(2)
    expect(page.locator("[data-task=worker-replica-2]")).to_have_attribute("aria-pressed", "true")
    ship(dashboard, agent, run, line("WARNING:absl:pipeline again"), task=TASKS[1])
    expect(page.locator(".ln")).to_have_count(3)
    page.get_by_label("Search").fill("nothing like it")
    expect(page.locator("#log-top")).to_have_text("No line matches the filters.")
    page.goto(f"{PATH}?since=2026-11-20T14:59:00Z&task=worker-replica-2")
    expect(page.locator(".ln")).to_have_count(1)
    expect(page.locator(".ln .msg")).to_have_text("error: boom <b>")
    page.get_by_label("Since").fill("yesterday")
    page.get_by_label("Since").press("Tab")
    expect(page.locator("#notes")).to_contain_text("since")
    page.errors.clear()  # type: ignore[attr-defined]  # the browser says that a call was refused


def test_lines_are_searched_and_linked_to(dashboard: DashboardServer, open_page: Open) -> None:
    agent, run = started(dashboard)
    texts = [f"fine {n}" for n in range(3000)]
    texts[700], texts[2100] = "needle one", "ERROR:root:needle two"
    for start in range(0, 3000, 1000):
        agent.log(*texts[start : start + 1000], run=run)
    page = open_page(f"{PATH}?first=error")
    marked = page.locator(".ln.marked")
    expect(marked).to_contain_text("needle two")
    expect(marked).to_be_in_viewport()
    page.wait_for_url("**/logs#L2107")
    page.keyboard.press("/")
    page.keyboard.type("Needle")
    page.keyboard.press("Shift+Enter")
    expect(marked).to_contain_text("needle one")
    page.wait_for_url("**/logs?search=Needle#L707")
    expect(marked.locator("mark")).to_have_text("needle")
    page.keyboard.press("Escape")
    page.keyboard.press("n")
    expect(marked).to_contain_text("needle two")
    page.keyboard.press("n")
    expect(page.locator("#notes")).to_contain_text("No later match.")
    page.keyboard.press("N")
    expect(marked).to_contain_text("needle one")
    page.keyboard.press("e")
    expect(marked).to_contain_text("needle two")
    page.locator(".ln", has_text="fine 2095").locator("a.at").click()
    expect(page.locator("#notes")).to_contain_text("The link of line 2102")
    page.wait_for_url("**#L2102")
    page.keyboard.press("?")
    expect(page.locator("#help")).to_contain_text("the first error")


HOSTILE = (
    "<script>window.hacked = 1</script><img src=x onerror='window.hacked = 2'>",
    "\x1b[31mred\x1b[0m \x1b[1;4mbold\x1b[22;24m \x1b[38;5;196mof 256\x1b[0m \x1b]0;title\x07\x1b[2J\x1b[H plain",
    "10%\r20%\r30%",
    "NUL \x00 and \u2028 and \x85 and \x9b1m",
    "\u202eevil\u202c",
    "  two  spaces\tand a tab",
    "javascript:alert(1) {{ 7 * 7 }}",
)


def test_lines_of_a_program_are_text(dashboard: DashboardServer, open_page: Open) -> None:
    agent, run = started(dashboard)
    lines = [line(text) for text in HOSTILE]
    lines += [line("y" * 40_000)._replace(partial=True), line("its rest", "stderr")]
    lines += [line(text, "stderr")._replace(overwritten=True) for text in ("10 %", "20 %")]
    ship(dashboard, agent, run, *lines)
    page = open_page(f"{PATH}?task=master-replica-0&search=%3Cscript%3E")
    expect(page.locator(".ln")).to_have_count(len(lines))
    texts = messages(page)
    assert texts[0] == HOSTILE[0]
    assert texts[1] == "red bold of 256  plain"
    assert texts[2:4] == ["10%␍20%␍30%", "NUL ␀ and ␤ and ␤ and "]
    assert texts[4:7] == list(HOSTILE[4:7])
    assert page.locator(".ln mark").all_text_contents() == ["<script>"]
    expect(page.locator(".ln .a-1")).to_have_text("red")
    assert page.evaluate("window.hacked") is None
    expect(page.get_by_text("10 %")).to_be_hidden()  # a bar is its last state
    expect(page.get_by_text("20 %")).to_be_visible()
    long = page.locator(".ln").nth(len(HOSTILE))
    expect(long).to_contain_text("(continues in the next line)")
    assert len(long.locator(".msg").text_content() or "") < 6000
    long.get_by_role("button", name="35,000 more characters").click()
    assert "y" * 40_000 in (long.locator(".msg").text_content() or "")


def test_runs_damage_and_quotas_are_shown(dashboard: DashboardServer, open_page: Open, tmp_path: Path) -> None:
    object.__setattr__(dashboard.api.use_cases.backend.settings, "log_quota", 4000)
    agent, run = started(dashboard)
    agent.log("of the first run", run=run)
    agent.log("to be damaged", run=run)
    agent.exit(code=None, reason=Reason.VANISHED, run=run)
    again = dashboard.placed(agent, "cnn", after=1)
    agent.start(again)
    agent.log("of the second run", *["x" * 100] * 40, run=again)
    path = tmp_path / "server" / "logs" / "p" / "cnn" / "segment"
    path.write_bytes(path.read_bytes().replace(b"to be damaged", b"\0" * 13))
    page = open_page(PATH)
    expect(page.locator(".ln", has_text="of the first run").locator(".by")).to_have_text("1/master-0")
    damaged = page.locator(".ln", has_text="this line was damaged")
    expect(damaged.locator(".at")).not_to_have_text("time unknown")
    agent.exit(run=again, logs=False)
    expect(page.locator("#log-end")).to_contain_text("the log quota left only the first")
    page.get_by_label("Run").select_option("2")
    expect(page.locator(".ln", has_text="of the second run")).to_be_visible()
    expect(page.locator(".ln", has_text="of the first run")).to_have_count(0)
    expect(page.locator(".ln", has_text="the job's log quota")).to_be_visible()
    page.get_by_label("UTC").check()
    page.reload()
    expect(page.get_by_label("UTC")).to_be_checked()
    expect(page.get_by_label("Run")).to_have_value("2")
