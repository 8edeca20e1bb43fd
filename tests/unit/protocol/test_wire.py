import json

import pytest
from pydantic import BaseModel, ValidationError

from trainyard_protocol.answers.cluster import AgentView
from trainyard_protocol.answers.usage import UsageBatch
from trainyard_protocol.fields import seconds
from trainyard_protocol.wire.agents import RuntimeOffer
from trainyard_protocol.wire.logs import LogChunk, LogDigest, LogLine, Stream, digest
from trainyard_protocol.wire.sync import SyncRequest


def line(text: str, stream: Stream = "stdout") -> LogLine:
    return LogLine(time="2026-11-20T10:00:00Z", stream=stream, text=text)


def test_digest_depends_on_order_stream_and_text_but_not_on_time() -> None:
    base = digest([line("a"), line("b")])
    assert base != digest([line("b"), line("a")])
    assert base != digest([line("a"), line("b", "stderr")])
    assert base == digest([line("a")._replace(time="x"), line("b")])
    assert digest([]) != digest([line("")])


def test_lines_that_were_written_together_are_one_block_of_a_chunk() -> None:
    lines = (line("a"), line("b"), line("c", "stderr"), line("d")._replace(partial=True), line("e"))
    chunk = LogChunk.of(0, lines)
    assert [len(block.texts) for block in chunk.blocks] == [2, 1, 1, 1]
    received = LogChunk.model_validate_json(chunk.model_dump_json())
    assert (received.lines, received.count) == (lines, 5)


def test_chain_of_a_log_goes_on_from_any_line() -> None:
    whole = LogDigest()
    for text in ("a", "b", "c"):
        whole.add("stdout", text)
    first = LogDigest()
    first.add("stdout", "a")
    rest = LogDigest(first.count, first.chain)
    for text in ("b", "c"):
        rest.add("stdout", text)
    assert (rest.count, rest.chain, rest.hexdigest()) == (3, whole.chain, "")
    assert whole.hexdigest() == digest([line("a"), line("b"), line("c")])
    changed = LogDigest(first.count, first.chain)
    changed.add("stderr", "b")
    changed.add("stdout", "c")
    assert changed.chain != whole.chain


AGENT = {
    "agent_id": "a",
    "name": "a",
    "version": "0.1",
    "runtime": "docker",
    "capacity_mode": "fit",
    "runs_images": True,
    "capacity": {"cpus": [0], "memory_bytes": 1},
    "replica_environment": {"STORAGE_EMULATOR_HOST": "http://host.docker.internal:1"},
}


PROCESSES, CONTAINERS = RuntimeOffer(name="process"), RuntimeOffer(name="docker", about="Docker engine 20.10")
AWAY = RuntimeOffer(name="docker", problem="no Docker engine answers at x")
BARRED = RuntimeOffer(name="process", problem="it may not", retiring=True)
RETIRING = RuntimeOffer(name="docker", retiring=True)


@pytest.mark.parametrize(
    ("runtime", "offers", "names", "summary"),
    [("process", (PROCESSES, CONTAINERS), "process + docker",
     "Docker engine 20.10: image jobs run in containers; package jobs as processes."), ("process", (PROCESSES, AWAY),
     "process + docker",
     "No Docker engine answers at x: image jobs wait until one does; package jobs run as processes."), ("docker",
     (PROCESSES, CONTAINERS), "process + docker", "Docker engine 20.10: jobs run in containers."), ("docker", (AWAY,),
     "docker", "No Docker engine answers at x: jobs wait until one does."), ("docker", (BARRED, AWAY), "docker",
     "No Docker engine answers at x: jobs wait until one does. It may not."), ("process", (PROCESSES, RETIRING),
     "process", "All jobs run as processes; image jobs need --runtime auto or docker."), ("docker", (), "docker", ""),
     ("kubernetes", (RuntimeOffer(name="kubernetes", about="Kubernetes 1.37"),), "kubernetes",
     "Kubernetes 1.37: jobs run as pods."), ("process", (BARRED, RuntimeOffer(name="kubernetes",
     about="Kubernetes 1.37")), "kubernetes",
     "Kubernetes 1.37: image jobs run as pods; package jobs do not run here: it may not.")],
)  # fmt: skip
def test_agent_says_what_runs_where(runtime: str, offers: tuple[RuntimeOffer, ...], names: str, summary: str) -> None:
    view = AgentView.model_validate(
        {**AGENT, "runtime": runtime, "runtimes": offers, "alive": True, "last_seen": "2026-11-20T10:00:00Z"}
    )
    assert (view.runtime_names, view.runtimes_summary) == (names, summary)


def test_seconds_reads_decimals_and_refuses_other_units() -> None:
    assert seconds("3.5s") == 3.5
    with pytest.raises(ValueError, match="not a duration"):
        seconds("3m")


def test_message_with_many_mistakes_has_few_errors() -> None:
    """Each error costs a kilobyte: a megabyte of `{}` was one gigabyte of errors."""
    many: list[object] = [{}] * 5000
    variables = {str(number): 1 for number in range(5000)}
    capacity = {"cpus": ["a"] * 5000, "gpus": many}
    agent = {"capacity": capacity, "runtimes": many, "replica_environment": variables}
    messages: tuple[tuple[type[BaseModel], object], ...] = (
        (LogChunk, {"start": 0, "blocks": many}),
        (SyncRequest, {"agent": agent, "runs": many}),
        (SyncRequest, {"agent": agent, "runs": [{"replicas": many}]}),
        (UsageBatch, {"samples": many}),
        (UsageBatch, {"samples": [{"gpus": many}]}),
    )
    for kind, message in messages:
        with pytest.raises(ValidationError) as refused:
            kind.model_validate_json(json.dumps(message))
        assert refused.value.error_count() < 25
