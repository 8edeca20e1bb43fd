"""Links to packages, by which replicas get them from the server without a token."""

from integration.api.api_support import AGENT, Server, running_agent


def test_link_gives_a_package_to_whoever_has_it_until_its_run_ends(api: Server) -> None:
    staged = api.upload(name="trainer-0+local.tar.gz")
    agent = running_agent(api, packageUris=[staged["uri"], "gs://bucket/other.whl"])
    links = api.done("GET", f"/agent/v1/runs/{agent.run.run_id}/packages", AGENT)["paths"]
    assert list(links) == [staged["uri"]]
    link = links[staged["uri"]]
    answer = api.client.get(link)
    assert (answer.status_code, answer.content) == (200, b"package")
    assert answer.headers["Cache-Control"] == "no-store"
    forged = (
        link.partition("?")[0],
        link[:-1] + ("0" if link[-1] != "0" else "1"),
        link.replace(agent.run.run_id, "0" * 32),
        link.replace(staged["sha256"], "0" * 64),
    )
    assert {one: api.client.get(one).status_code for one in forged} == dict.fromkeys(forged, 403)
    agent.exit()
    assert api.client.get(link).status_code == 404
