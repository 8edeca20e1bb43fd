"""Programs that a browser sends: the examples of the dashboard, from their files to the end of their jobs."""

import httpx
import pytest

from e2e.harness import Service
from integration.api.tars import tar_of
from trainyard_cli.local.state import LocalState
from trainyard_server.capabilities.config_editor.new_page import EXAMPLES

pytestmark = pytest.mark.e2e

FORM = """\
trainingInput:
  scaleTier: CUSTOM
  masterType: local-1
{workers}  packageUris: [{uri}]
  pythonModule: {module}
"""
WORKERS = "  workerType: local-1\n  workerCount: {count}\n"
PRINTED = {
    "curve": ("step 30 loss 0.", "y = "),
    "replicas": ("worker 0: ", "2 replicas: pi is about 3.1"),
    "search": (),
}
"""What each example that brings a program prints."""


def submit(http: httpx.Client, name: str, project: str) -> None:
    """Send the files and then the config, as the page does."""
    example = EXAMPLES[name].content()
    files = {path: text.encode() for path, text in example["files"].items()}
    sent = http.post(f"/upload/trainyard/v1/projects/{project}/programs", content=tar_of(files)).json()
    workers = WORKERS.format(count=example["replicas"] - 1) if example["replicas"] > 1 else ""
    config = FORM.format(workers=workers, uri=sent["uri"], module=sent["module"]) + example["appended"]
    asked = {"config": config, "jobId": name, "args": example["args"]}
    checked = http.post(f"/trainyard/v1/projects/{project}/configs:check", json=asked).json()
    assert checked["ok"], checked
    http.post(f"/v1/projects/{project}/jobs", json=checked["job"]).raise_for_status()


def test_example_programs_run_to_the_end_without_a_checkout(service: Service) -> None:
    server = LocalState(service.state_dir).server()
    assert server is not None
    assert set(PRINTED) == {name for name, example in EXAMPLES.items() if example.program}
    with httpx.Client(
        base_url=server.url, headers={"Authorization": f"Bearer {server.token}"}, trust_env=False, timeout=60
    ) as http:
        for name in PRINTED:
            submit(http, name, service.project)
    for name, texts in PRINTED.items():
        assert service.wait_for(name, "SUCCEEDED", "FAILED") == "SUCCEEDED", service.log(name)
        log = service.log(name)
        assert [text for text in texts if text not in log] == [], log
    best = service.ok("jobs", "trials", "search")
    assert "learning-rate" in best
