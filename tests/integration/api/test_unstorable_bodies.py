"""What JSON can spell and nothing can store is refused at the door."""

from integration.api.api_support import ADMIN, Server


def test_create_with_half_a_surrogate_pair_is_refused_and_leaves_nothing(api: Server) -> None:
    body = b'{"jobId": "j", "trainingInput": {"pythonModule": "a.b", "args": ["\\ud800"]}}'
    answer = api.client.post("/v1/projects/p/jobs", content=body, headers=ADMIN)
    assert answer.status_code == 400
    assert answer.json()["error"]["message"].startswith("Invalid JSON payload received.")
    assert api.get("/v1/projects/p/jobs") == {}
