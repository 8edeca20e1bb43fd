"""Live logs with 100 followers: completeness, lag, and the effect on the latency from submit to placement.

One job prints 1,000 lines per second; phases with and without followers alternate.
"""

import argparse
import itertools
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from benchmarks.followers.local_server import (
    CHATTY,
    PROJECT,
    BenchmarkError,
    LogWriter,
    ScriptedAgent,
    ServerProcess,
    serving,
    submit,
)

_NUMBERS = itertools.count(1)


@dataclass
class Phase:
    """Seconds from submit to placement of each job and of each ping (`GET /healthz`), CPU use of the server in cores,
    and the results of the followers."""

    followers: int
    placed_s: list[float] = field(default_factory=list)
    pings_s: list[float] = field(default_factory=list)
    cores: float = 0.0
    read: dict[str, Any] = field(default_factory=dict)

    @property
    def complete(self) -> bool:
        """Whether each follower received each line exactly once."""
        return not self.followers or (not self.read["wrong"] and len(self.read["lines"]) == 1)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.followers", description=__doc__)
    parser.add_argument("--followers", type=int, default=100)
    parser.add_argument("--lines", type=int, default=1000, help="per second")
    parser.add_argument("--seconds", type=float, default=30, help="per phase")
    parser.add_argument("--rounds", type=int, default=3, help="of two phases, without and with followers")
    parser.add_argument("--json", type=Path, help="write the results to this file")
    options = parser.parse_args()
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as directory, serving(Path(directory)) as address:
        phases = measure(address, options.followers, options.lines, options.seconds, options.rounds)
    machine = f"{os.cpu_count()} cores, Python {platform.python_version()}, load before {load:.1f}"
    print("\n".join([machine, "", *report(phases, options.lines, options.seconds)]))
    if options.json:
        options.json.write_text(json.dumps([vars(phase) for phase in phases], indent=1), encoding="utf-8")
    if not all(phase.complete for phase in phases):
        sys.exit("A follower did not receive every line exactly once.")


def measure(address: ServerProcess, followers: int, lines: int, seconds: float, rounds: int) -> list[Phase]:
    """Phases without, with, with, without, ... followers on one server process. Raises BenchmarkError."""
    with ScriptedAgent(address) as agent, address.client(address.admin) as client:
        submit(client, CHATTY)
        _, run = agent.wait(CHATTY)
        phases = []
        with LogWriter(address, run, lines) as log_writer:
            for number in range(rounds):
                for count in (0, followers) if number % 2 == 0 else (followers, 0):
                    phases.append(_phase(address, agent, log_writer, client, count, seconds))
                    log_writer.check()
    return phases


def _phase(
    address: ServerProcess,
    agent: ScriptedAgent,
    log_writer: LogWriter,
    client: httpx.Client,
    followers: int,
    seconds: float,
) -> Phase:
    phase = Phase(followers)
    last = f"the last line of phase {next(_NUMBERS)}"
    reading = _readers(address, client, followers, last) if followers else None
    chance = random.Random(1)  # noqa: S311 - pauses
    try:
        time.sleep(min(2.0, seconds / 5))
        start, used = time.monotonic(), address.cpu_s()
        while time.monotonic() < start + seconds:
            began = time.monotonic()
            client.get("/healthz").raise_for_status()
            phase.pings_s.append(time.monotonic() - began)
            job = f"small_{next(_NUMBERS)}"
            began = submit(client, job)
            phase.placed_s.append(agent.wait(job)[0] - began)
            time.sleep(chance.uniform(0.1, 0.4))
        phase.cores = (address.cpu_s() - used) / (time.monotonic() - start)
        log_writer.print_line(last)
        if reading is not None:
            output, _ = reading.communicate(timeout=300)
            phase.read = json.loads(output)
    finally:
        if reading is not None:
            reading.kill()
            reading.wait()
    return phase


def _readers(
    address: ServerProcess, client: httpx.Client, followers: int, last: str
) -> "subprocess.Popen[str]":
    page = client.get(f"/trainyard/v1/projects/{PROJECT}/jobs/{CHATTY}/logs/page", params={"limit": 1})
    after = page.raise_for_status().json()["last"]
    arguments = [address.url, str(followers), str(after), last]
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.followers.readers", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    if process.stdin is None:
        raise BenchmarkError("The followers have no stdin.")
    process.stdin.write(f"{address.admin}\n")
    process.stdin.flush()
    return process


def report(phases: list[Phase], lines: int, seconds: float) -> list[str]:
    """The results as lines of Markdown."""
    rows = [
        f"{lines} lines/s, phases of {seconds:g} s, in the order of measurement",
        "",
        "| followers | submit to placement, ms (p90, n) | ping, ms (p90) | server's CPU, cores "
        "| lag of lines, ms (p99, max) | lag / ping | lines received by each | complete |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for phase in phases:
        ping = statistics.median(phase.pings_s)
        cells = [
            str(phase.followers),
            f"{_ms(phase.placed_s)} ({_ms(phase.placed_s, 90)}, {len(phase.placed_s)})",
            f"{_ms(phase.pings_s)} ({_ms(phase.pings_s, 90)})",
            f"{phase.cores:.2f}",
        ]
        if read := phase.read:
            lag = read["lag_median_s"]
            cells += [
                f"{lag * 1e3:.0f} ({read['lag_p99_s'] * 1e3:.0f}, {read['lag_most_s'] * 1e3:.0f})",
                f"{lag / ping:.0f}",
                " or ".join(map(str, read["lines"])),
                "; ".join(read["wrong"]) or "all",
            ]
        else:
            cells += ["", "", "", ""]
        rows.append("| " + " | ".join(cells) + " |")
    without = [s for phase in phases if not phase.followers for s in phase.placed_s]
    beside = [s for phase in phases if phase.followers for s in phase.placed_s]
    if without and beside:
        ratio = statistics.median(beside) / statistics.median(without)
        pairs = [
            sorted(two, key=lambda p: p.followers) for two in zip(phases[::2], phases[1::2], strict=True)
        ]
        ratios = [statistics.median(two.placed_s) / statistics.median(one.placed_s) for one, two in pairs]
        rows += [
            "",
            f"Submit to placement with followers / without: {ratio:.2f} "
            f"(rounds: {min(ratios):.2f} to {max(ratios):.2f})",
        ]
    return rows


def _ms(seconds: list[float], percent: int = 50) -> str:
    return f"{sorted(seconds)[len(seconds) * percent // 100] * 1e3:.1f}"


if __name__ == "__main__":
    main()
