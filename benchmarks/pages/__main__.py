"""Latency of the dashboard's pages with 50,000 jobs in the database, relative to 50 jobs.

Two servers are requested alternately for the same pages over HTTP; the result is the ratio of the medians.
"""

import argparse
import statistics
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import httpx

from benchmarks.filled import fill, serving

FEW, MANY = 50, 50_000
PAGES = {
    "the list": "/",
    "its second page": "/?page=2",
    "by name": "/?sort=name",
    "by owner": "/?sort=owner",
    "by end": "/?sort=-ended",
    "failed jobs": "/?state=FAILED",
    "queued jobs": "/?state=QUEUED",
    "a label": "/?label=team=t3",
    "a label of three jobs": "/?label=pinned=yes",
    "a label, failed": "/?label=team=t3&state=FAILED",
    "a label of every second job": "/?label=stage=final",
    "a project": "/?project=p3",
    "an owner": "/?owner=o3",
    "text in many names": "/?q=job",
    "text in one name": "/?q=job_0000007",
    "text in no name": "/?q=nothing_like_it",
    "the last day": "/?since=24h",
    "failing": "/?trouble=1",
    "a job": "/projects/p2/jobs/job_0000007",
    "a job's config": "/projects/p2/jobs/job_0000007/config",
}


def main() -> None:
    options = _parser().parse_args()
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        clients = []
        for count in (FEW, options.jobs):
            data_dir = directory / str(count)
            fill(data_dir, count)
            clients.append(stack.enter_context(serving(data_dir, directory)))
        print(f"{options.jobs:,} jobs against {FEW}, medians of {options.rounds} alternating rounds\n")
        print("| page | lines shown | with 50 | ratio | rounds |\n|---|---|---|---|---|")
        for name, path in PAGES.items():
            lines = " to ".join(str(client.get(path).text.count("data-row")) for client in clients)
            few, many = measure(clients, path, options.rounds)
            ratio = statistics.median(many) / statistics.median(few)
            each = sorted(b / a for a, b in zip(few, many, strict=True))
            low, high = each[len(each) // 10], each[-len(each) // 10 - 1]
            print(
                f"| {name} | {lines} | {statistics.median(few) * 1000:.0f} ms | {ratio:.2f} | {low:.2f} to {high:.2f} |"
            )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="benchmarks.pages", description=__doc__)
    parser.add_argument("--rounds", type=int, default=30, help="default: %(default)s")
    parser.add_argument("--jobs", type=int, default=MANY, help="default: %(default)s")
    return parser


def measure(clients: list[httpx.Client], path: str, rounds: int) -> tuple[list[float], list[float]]:
    """Seconds of each round on each server, in alternating order."""
    seconds: tuple[list[float], list[float]] = ([], [])
    for number in range(rounds + 2):
        for at in (0, 1) if number % 2 else (1, 0):
            began = time.perf_counter()
            response = clients[at].get(path)
            elapsed = time.perf_counter() - began
            response.raise_for_status()
            if number >= 2:  # warm-up
                seconds[at].append(elapsed)
    return seconds


if __name__ == "__main__":
    main()
