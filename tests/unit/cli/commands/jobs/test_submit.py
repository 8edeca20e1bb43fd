"""`jobs submit` and `jobs validate`: where the violations of a job come from."""

from pathlib import Path

import pytest

from trainyard_cli.commands.jobs.submitting import _check
from trainyard_cli.settings import Server, Target
from trainyard_cli.submission.flags import JobFlags
from trainyard_cli.submission.submit import draft
from trainyard_protocol.errors import InvalidArgument, PermissionDenied, Violation
from unit.cli.scripted_server import Answer, refused, scripted_server

BOTH = InvalidArgument(
    [Violation("worker_count", "must be a whole number."), Violation("worker_type", "is not a machine type.")]
)


@pytest.mark.parametrize(
    ("answer", "reported"),
    [(refused(BOTH), ["2: workerCount", "3: workerType"]), (refused(PermissionDenied("no")), ["2: workerCount"])],
)
def test_violations_of_the_server_are_among_the_others(tmp_path: Path, answer: Answer, reported: list[str]) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("trainingInput:\n  workerCount: two\n  workerType: gpu-bx\n")
    made = draft(config, JobFlags({}), current_dir=tmp_path)
    with scripted_server() as server:
        server.answers.append(answer)
        with pytest.raises(InvalidArgument) as caught:
            _check(made, Target(tmp_path), Server(server.url, "token"), catalog=None)
    lines = [line for line in caught.value.message.splitlines() if line.startswith(str(config))]
    assert [line.removeprefix(f"{config}:").rpartition(":")[0] for line in lines] == reported
