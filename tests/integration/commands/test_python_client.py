"""The Python client against a server behind a socket, whose agent plays a trainer: examples of how-to/automation.md."""

import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy
import pytest

from trainyard import Client, WaitTimeout
from trainyard_protocol.errors import InvalidArgument, NotFound

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "automation.md"


def test_examples_of_the_page_do_what_it_says(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "pandas", SimpleNamespace(DataFrame=dict))
    known: dict[str, Any] = {}
    examples = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    for example in examples:
        exec(example.replace('job_dir="', f'job_dir="{tmp_path}/'), known)  # at a server elsewhere none is relative
        for job in client.jobs():
            job.wait(timeout=60)
    printed = capsys.readouterr().out
    assert "0.75 0.5\ndigits_lr3 SUCCEEDED\n" in printed
    assert "ended as FAILED. The replica master 0 exited with a non-zero status of 3" in printed
    assert "master-replica-0 ERROR: the learning rate is no number" in printed
    assert known["verdict"].exit_code == 3
    assert known["best"] == 100
    assert numpy.shares_memory(known["values"], known["metrics"]["loss"].values)
    assert known["points"]["step"] == [0, 100, 200]
    row = known["table"]["job_id"].index("digits_lr3")
    assert {"params.learning_rate", "metrics.loss", "labels.team"} <= known["table"].keys()
    assert (known["table"]["params.learning_rate"][row], known["table"]["metrics.loss"][row]) == (0.003, 0.75)
    assert known["names"] == ["variables"]
    assert (known["path"] / "variables" / "weights.bin").read_bytes() == b"weights"
    assert "SUCCEEDED</span>, step 200 of 200" in known["job"]._repr_html_()
    assert known["job"].detail().job["trainingInput"]["args"] == ["--learning-rate", "0.003"]
    known["client"].close()


def test_job_that_goes_on_times_out_and_can_be_cancelled_and_followed_by_another(client: Client) -> None:
    job = client.submit("config.yaml", args=["--learning-rate", 0])
    with pytest.raises(WaitTimeout, match=r"is still \w+ after 0.01 s. It goes on."):
        job.wait(timeout=0.01)
    job.cancel()
    job.cancel()
    assert client.submit("config.yaml").id != job.id  # of the same second


def test_flags_of_machines_priority_and_notifications_are_parameters(client: Client) -> None:
    job = client.submit("config.yaml", cpus=2, band="batch", notify="https://example.com/hook", args=["0"])
    given = job.detail().job["trainingInput"]
    assert (given["masterType"], given["scheduling"]["band"]) == ("local-2", "BATCH")
    assert [entry["to"] for entry in given["notifications"]] == ["https://example.com/hook"]
    with pytest.raises(InvalidArgument, match=r"^cpus must be at least 1; this is 0\.$"):
        client.submit("config.yaml", cpus=0)


def test_missing_job_is_answered_with_a_similar_id(client: Client) -> None:
    client.submit("config.yaml", job_id="digits_lr3")
    with pytest.raises(NotFound, match=r"^There is no job digit_lr3 in the project local\. Did you mean digits_lr3\?$"):
        client.job("digit_lr3")
    with pytest.raises(NotFound, match=r"^There is no job rates\.1 in the project local\."):
        client.job("rates/1")


def test_frame_without_pandas_names_what_to_install(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match="pip install pandas"):
        client.jobs_frame()


def test_config_that_is_wrong_raises_all_that_is_and_uploads_nothing(client: Client) -> None:
    config = {"trainingInput": {"workerCount": "two", "masterType": "n1-standrd-4"}}
    with pytest.raises(InvalidArgument) as caught:
        client.submit(config, package_path="trainer", labels={"Team": "x"}, secrets={"PATH": "a"})
    where = ("config:3: workerCount", "config:4: masterType", "--labels: has the key 'Team'", "--set-secrets: PATH is")
    for part in where:
        assert part in caught.value.message
    assert client.jobs() == []
