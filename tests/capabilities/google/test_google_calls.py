"""Features of calls of every Google API: tokens in the query, gzip, partial answers, method override, batches."""

import gzip
import json
from pathlib import Path

import pytest

from integration.api.api_support import ADMIN, Clock, ScriptedAgent, Server, package_job, server

JOBS = "/v1/projects/p/jobs"


def test_token_in_the_query_is_one_at_googles_addresses_alone_and_in_no_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Refused calls are in the audit, and what fails is in the log: neither has the query."""
    storage = {"Host": "storage.googleapis.com"}
    table: list[tuple[str, str, dict[str, str], bool]] = [
        *(("GET", path, {}, True) for path in (JOBS, f"{JOBS}/none", "/storage/v1/b/x/o")),
        ("POST", "/v2/entries:list", {}, True),
        ("DELETE", "/storage/v1/b/x/o/y", {}, True),
        ("POST", "/upload/storage/v1/b/x/o", {}, True),
        ("GET", "/download/storage/v1/b/x/o/y", {}, True),
        ("GET", "/bucket/object", storage, True),
        ("GET", "/storage/plain/bucket/object", {}, False),
        ("PUT", "/storage/plain/bucket/object", {}, False),
        ("GET", "/trainyard/v1/status", {}, False),
        ("POST", "/trainyard/v1/tokens", {}, False),
        ("DELETE", "/trainyard/v1/projects/p/jobs/a", {}, False),
        ("POST", "/upload/trainyard/v1/projects/p/packages/a.whl", {}, False),
        ("POST", "/agent/v1/sync", {}, False),
        ("POST", "/batch", {}, False),
        ("GET", "/cluster", {}, False),
        ("GET", "/unknown/path", {}, False),
    ]
    hosts = ("server", "*.googleapis.com")
    query = "access_token=admin-secret&access%5Ftoken=admin-secret"
    with server(tmp_path, Clock(), allowed_hosts=hosts) as api, caplog.at_level("DEBUG"):
        answers = [api.client.request(method, f"{path}?{query}", headers=headers) for method, path, headers, _ in table]
        rows = api.client.get("/trainyard/v1/audit?pageSize=1000", headers=ADMIN).text
    assert [answer.status_code not in (401, 421) for answer in answers] == [known for *_, known in table]
    server_log = [line for line in caplog.messages if "HTTP Request: " not in line]  # of this test's client
    assert all("admin-secret" not in text for text in (rows, *server_log, *(one.text for one in answers)))


def test_compressed_body_is_read_within_the_limits(api: Server) -> None:
    def status(body: bytes, encoding: str = "gzip") -> tuple[int, str]:
        answer = api.client.post(JOBS, content=body, headers={**ADMIN, "Content-Encoding": encoding})
        return answer.status_code, answer.text

    job = json.dumps({"jobId": "small", "trainingInput": package_job()}).encode()
    assert status(gzip.compress(job))[0] == 200
    assert api.job("small")["state"] == "QUEUED"
    bomb = gzip.compress(b"[" + b" " * (1 << 28) + b"]")
    assert len(bomb) < 300_000
    assert status(bomb)[0] == 413
    for broken in (job, gzip.compress(job)[:-9], b""):
        code, text = status(broken)
        assert (code, "not the gzip" in text) == (400, True), text
    assert "must be gzip" in status(job, "br")[1]


def test_answer_has_the_selected_fields_errors_are_whole_and_a_method_is_overridden(api: Server) -> None:
    api.create("a")
    answer = api.client.get(f"{JOBS}/a?fields=jobId,trainingInput(masterType)&prettyPrint=true", headers=ADMIN)
    assert answer.json() == {"jobId": "a", "trainingInput": {"masterType": "local-1"}}
    assert answer.text.startswith('{\n  "jobId": "a",')
    for path, code, says in (
        ("/b?fields=jobId", 404, '"NOT_FOUND"'),
        ("?fields=jobs(", 400, "Field: fields Error"),
        ("?callback=f", 400, "JSONP"),
    ):
        api.refusal("GET", f"{JOBS}{path}", code, says)
    # An overridden method is that of the call.
    patch, trace = ({**ADMIN, "X-HTTP-Method-Override": method} for method in ("PATCH", "TRACE"))
    patched = api.done("POST", f"{JOBS}/a?updateMask=labels", patch, json={"labels": {"x": "y"}})
    assert patched["labels"] == {"x": "y"}
    api.refusal("POST", JOBS, 400, "must be one of GET, PUT, PATCH, DELETE", trace)


def part(call: str, content_id: str = "<a + 1>") -> str:
    return f"--x\r\nContent-Type: application/http\r\nContent-ID: {content_id}\r\n\r\n{call}\r\n"


@pytest.mark.parametrize(
    ("body", "code", "says"),
    [
        ("", 400, "has no parts"),
        (part("GET /v1/projects/p/jobs") * 101 + "--x--", 400, "may have 100 calls; this has more"),
        (part("GET /trainyard/v1/status HTTP/1.1") + "--x--", 200, "A batch has calls of /v1/"),
        (part("no call") + "--x--", 200, "must begin with a request line, not 'no call'"),
        ("--x\r\nContent-Type: text/plain\r\n\r\nGET /v1/a\r\n--x--", 200, "of the type application/http"),
        (part("GET /v1/projects/p/jobs\r\nAuthorization: Bearer wrong\r\n\r\n") + "--x--", 200, "401 Unauthorized"),
        (part("GET /v1/projects/p/jobs\r\nTo: " + "a," * 40_000) + "--x--", 200, "may have 65536 bytes"),
        (part("GET /v1/a", "<a>\r\nContent-Transfer-Encoding: base64"), 200, "must be binary, not 'base64'"),
        (part("GET /v1/projects/p/jobs\nCookie: a=b\n\n", "<\u00e9\r\n") + "--x--", 200, "HTTP/1.1 200 OK"),
    ],
)
def test_batch_answers_each_call_by_itself(api: Server, body: str, code: int, says: str) -> None:
    kind = {"Content-Type": 'multipart/mixed; boundary="x"'}
    answer = api.client.post("/batch/ml/v1", content=body.encode(), headers=ADMIN | kind)
    assert (answer.status_code, says in answer.text) == (code, True), answer.text


def test_batch_of_nested_parts_is_one_refused_call(api: Server) -> None:
    """A parser that goes into each of them runs out of its stack."""
    kind = "multipart/mixed; boundary="
    body = "--x\r\n" + "".join(f"Content-Type: {kind}n{n}\r\n\r\n--n{n}\r\n" for n in range(5000))
    answer = api.client.post("/batch", content=body, headers=ADMIN | {"Content-Type": f"{kind}x"})
    assert (answer.status_code, answer.text.count("HTTP/1.1 400")) == (200, 1)


def test_calls_of_a_batch_are_in_the_audit_with_their_own_names(api: Server) -> None:
    job = json.dumps({"jobId": "a", "trainingInput": package_job()})
    calls = part(f"POST {JOBS} HTTP/1.1\r\nContent-Type: application/json\r\n\r\n{job}")
    calls += part(f"POST {JOBS}/a:cancel HTTP/1.1\r\n\r\n") + "--x--"
    kind = {"Content-Type": "multipart/mixed; boundary=x"}
    assert api.client.post("/batch", content=calls, headers=ADMIN | kind).text.count("200 OK") == 2
    rows = api.get("/trainyard/v1/audit")["entries"]
    assert [(row["action"], row["subject"]) for row in rows][:2] == [("jobs.cancel", "a"), ("jobs.create", "a")]


def test_runtime_version_is_one_of_the_shipped_file_or_of_an_agents(tmp_path: Path) -> None:
    with server(tmp_path, Clock()) as api:
        api.create("a", runtimeVersion="1.14")
        refused = api.submit("b", runtimeVersion="9.9")
        says = "Field: runtime_version Error: '9.9' is not a runtime version of this service. Known: 1.0"
        assert (refused.status_code, refused.json()["error"]["message"].startswith(says)) == (400, True)
        ScriptedAgent(api, runtime_versions=("9.9",)).sync()
        api.create("b", runtimeVersion="9.9")
        assert "torch, 9.9." in api.submit("c", runtimeVersion="9").json()["error"]["message"]


def test_region_that_the_site_does_not_have_is_refused_in_the_services_words(tmp_path: Path) -> None:
    with server(tmp_path, Clock(), regions=("europe-west1", "us-central1")) as api:
        refused = api.submit("a", region="mars")
        assert (refused.status_code, refused.json()["error"]["message"]) == (
            400,
            "Field: region Error: The provided GCE region 'mars' is not available. "
            "Options are [europe-west1, us-central1].",
        )
        api.create("a", region="us-central1")
        names = [one["name"] for one in api.get("/v1/projects/p/locations")["locations"]]
        assert names == ["projects/p/locations/europe-west1", "projects/p/locations/us-central1"]
        assert api.client.get("/v1/projects/p/locations/mars", headers=ADMIN).status_code == 404
