"""`jobs rerun`, against a server whose agent plays a trainer."""

import pytest

from integration.commands.test_python_client import client
from trainyard import Client
from trainyard_cli.commands.tree import trainyard
from trainyard_cli.main import run

__all__ = ["client"]


def test_job_runs_again_with_the_same_packages_and_one_change(
    client: Client, capsys: pytest.CaptureFixture[str]
) -> None:
    def jobs(words: str) -> tuple[int, str]:
        code = run(trainyard, "trainyard", ["jobs", *words.split()])
        return code, "".join(reversed(capsys.readouterr()))

    given = {"labels": {"team": "a"}, "env": {"MODE": "x"}, "job_dir": "gs://models/first", "package_path": "trainer"}
    args = ["--epochs", "2", "--lr=0.1"]
    first = client.submit(module_name="trainer.task", job_id="first", args=args, **given).detail().job  # type: ignore[arg-type]
    code, err = jobs("rerun first second --set-arg lr=0.2 --env MODE=y --region here")
    assert code == 0, err
    assert "The arguments of first, changed: --epochs 2 --lr=0.2" in err
    assert "Its job-dir is gs://models/second" in err
    again = client.job("second").detail().job
    sent = {**first["trainingInput"], "args": ["--epochs", "2", "--lr=0.2"], "env": {"MODE": "y"}, "region": "here"}
    assert again["trainingInput"] == {**sent, "jobDir": "gs://models/second"}
    assert again["labels"] == {"team": "a"}

    for job in ("first", "second"):
        client.job(job).wait(timeout=60)
    table = [line.split() for line in jobs("diff first second")[1].splitlines()]
    assert table == [
        ["FIELD", "first", "second"],
        ["args.--lr", "0.1", "0.2"],
        ["jobDir", "gs://models/first", "gs://models/second"],
        ["env.MODE", "x", "y"],
        ["region", "here"],
    ]
    assert "first and first have the same arguments" in jobs("diff first first")[1]

    code, err = jobs("rerun first --job-dir gs://models/third")
    assert code == 0, err
    (third,) = [job for job in client.jobs() if job.id.startswith("first_20")]
    assert third.detail().job["trainingInput"] == {**first["trainingInput"], "jobDir": "gs://models/third"}
    assert jobs("rerun second last -- --epochs 9")[0] == 0
    assert client.job("last").detail().job["trainingInput"]["args"] == ["--epochs", "9"]
    assert "give either --set-arg or all arguments" in jobs("rerun first --set-arg a=1 -- --epochs 9")[1]
    assert "argument --raw: It needs --stream-logs." in jobs("rerun first --raw")[1]
    code, err = jobs("rerun no_such_job")
    assert (code, "no_such_job" in err) == (1, True), err
    for made in client.jobs():
        made.wait(timeout=60)
