"""Values that JSON allows and the database cannot store are refused."""

from beds.databases import on_every_database
from integration.api.api_support import ADMIN, VERA, Server

pytestmark = on_every_database


def test_create_with_half_a_surrogate_pair_is_refused_and_leaves_nothing(api: Server) -> None:
    body = b'{"jobId": "j", "trainingInput": {"pythonModule": "a.b", "args": ["\\ud800"]}}'
    answer = api.client.post("/v1/projects/p/jobs", content=body, headers=ADMIN)
    assert answer.status_code == 400
    assert answer.json()["error"]["message"].startswith("Invalid JSON payload received.")
    assert api.get("/v1/projects/p/jobs") == {}


def test_name_that_cannot_be_stored_is_no_error_of_the_servers(api: Server) -> None:
    """PostgreSQL takes no NUL; SQLite finds nothing of that name."""
    paths = ("/projects/%00/jobs/j", "/live/projects/%00/jobs/j", "/v1/projects/p/jobs/%00", "/?label=%00")
    codes = {path: api.client.get(path, headers=VERA).status_code for path in paths}
    assert {path: code for path, code in codes.items() if code not in (200, 400, 404)} == {}


def test_list_is_not_asked_for_more_than_any_job_has(api: Server) -> None:
    """A pattern of that length, and conditions of that number, are what SQLite refuses."""
    for path in (f"/?q={'x' * 60_000}", f"/trainyard/v1/jobs?q={'x' * 60_000}", f"/?{'label=a&' * 5000}"):
        answer = api.client.get(path, headers=VERA)
        assert (answer.status_code, answer.json()["error"]["status"]) == (400, "INVALID_ARGUMENT")
