"""Sign-in with a token or a code, and sign-out."""

import re
import string
from pathlib import Path

import httpx

from beds.databases import on_every_database
from integration.api.api_support import ADMIN, AGENT, ALICE, TOKENS, VERA, Clock, Server, server
from trainyard_server.domain.access.sessions import LIFETIME
from trainyard_server.storage.db.base.people_models import UsedTokenRow

CODES = "/trainyard/v1/sign-in-codes"


def enter(api: Server, headers: dict[str, str] | None = None, **fields: str) -> httpx.Response:
    return api.client.post("/sign-in", data=fields, headers=headers or {})


def cookie_of(answer: httpx.Response) -> dict[str, str]:
    return {"Cookie": answer.headers["set-cookie"].partition(";")[0]}


def code_for(api: Server, who: dict[str, str]) -> str:
    return str(api.done("POST", CODES, who)["code"])


def test_sign_in_never_redirects_to_another_server(api: Server) -> None:
    for path in ("//evil.example", "/\\evil.example", "https://evil.example", "/\t/evil.example"):
        assert enter(api, token="alices-secret", next=path).headers["location"] == "/"
        page = api.client.get("/sign-in", params={"next": path}).text
        assert ('name="next" value="/"' in page, "evil" in page) == (True, False), path


def test_wrong_token_is_reported_and_never_echoed(api: Server) -> None:
    for token in ("", "no-secret", "alices-secret2", "ä", "<script>"):
        answer = enter(api, token=token, next="/cluster")
        assert answer.status_code == 401, token
        assert "That is not a token of this server." in answer.text
        assert 'name="next" value="/cluster"' in answer.text
        assert "set-cookie" not in answer.headers
        assert not token or token not in answer.text


def test_agent_token_cannot_sign_in_and_only_a_token_makes_a_code(api: Server) -> None:
    answer = enter(api, token="agent-secret")
    assert (answer.status_code, "That is the token of a worker agent." in answer.text) == (403, True)
    assert "set-cookie" not in answer.headers
    assert [api.status("POST", CODES, who) for who in (AGENT, api.session("admin"))] == [403, 401]


def test_form_that_is_too_large_or_of_another_site_is_refused(api: Server) -> None:
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    session = cookie_of(enter(api, token="alices-secret"))
    for body, status in ((b"token=" + b"x" * 2**16, 413), (b"&".join([b"a=1"] * 101), 400)):
        assert api.status("POST", "/sign-in", form, content=body) == status
        assert api.status("POST", "/sign-out", form | session, content=body) == status
    for headers in ({"Sec-Fetch-Site": "cross-site"}, {"Origin": "https://evil.example"}):
        assert enter(api, headers, token="alices-secret").status_code == 403


def test_code_cannot_be_used_again_in_another_spelling_of_its_signature(api: Server) -> None:
    """The last of its characters has two bits that say nothing."""
    code = code_for(api, ALICE)
    spellings = [code[:-1] + last for last in string.ascii_letters + string.digits + "-_"]
    assert [enter(api, code=text).status_code for text in [code, *spellings][:9]] == [303] + 8 * [401]
    known = [api.use_cases.sessions.read_code(text, api.clock()) for text in spellings]
    assert len([one for one in known if one]) == 4


def test_code_expires_after_two_minutes(api: Server, clock: Clock) -> None:
    code = code_for(api, ALICE)
    clock.advance(119)
    assert enter(api, code=code).status_code == 303
    code = code_for(api, ALICE)
    clock.advance(120)
    assert enter(api, code=code).status_code == 401


@on_every_database
def test_code_is_used_once_on_all_servers(tmp_path: Path, clock: Clock) -> None:
    with server(tmp_path, clock) as first:
        code = code_for(first, ALICE)
        assert enter(first, code=code).status_code == 303
    with server(tmp_path, clock) as second:
        assert enter(second, code=code).status_code == 401
    other = tuple(token for token in TOKENS if token.name != "alice")
    with server(tmp_path / "other", clock, tokens=other) as third:
        assert enter(third, code=code).status_code == 401


def test_guesses_are_slowed_down_and_the_right_credential_is_always_taken(api: Server, clock: Clock) -> None:
    """All from one address, as behind a proxy: wrong tokens, codes and bearer tokens count together."""

    def bearer(token: str) -> httpx.Response:
        return api.client.get("/trainyard/v1/me", headers={"Authorization": f"Bearer {token}"})

    for number in range(3):
        assert enter(api, token=f"guess {number}").status_code == 401
        assert enter(api, code=f"guess {number}").status_code == 401
        assert bearer(f"guess-{number}").status_code == 401
    made = api.token(ALICE, description="x")[1]["Authorization"].split()[1]
    assert bearer("trainyard_guess").status_code == 401
    wrong = [enter(api, token="guess"), enter(api, code="guess"), bearer("guess"), bearer("trainyard_guess")]
    for answer in wrong:
        assert (answer.status_code, answer.headers["retry-after"]) == (429, "6")
    assert "try the next in 6 s. The right one is accepted at any time." in wrong[0].text
    assert wrong[2].json()["error"]["status"] == "RESOURCE_EXHAUSTED"
    assert wrong[2].headers["www-authenticate"] == 'Bearer realm="trainyard"'
    assert enter(api, token="alices-secret").status_code == 303
    assert enter(api, token=made).status_code == 303
    assert enter(api, code=code_for(api, ALICE)).status_code == 303
    assert [bearer(token).status_code for token in ("alices-secret", made)] == [200, 200]
    clock.advance(6)
    assert [enter(api, token="guess").status_code for _ in range(2)] == [401, 429]


def csrf_of(api: Server, cookie: dict[str, str]) -> dict[str, str]:
    page = api.client.get("/", headers=cookie).text
    found = re.search(r'action="/sign-out"><input type="hidden" name="csrf" value="([^"]+)"', page)
    assert found is not None
    return {"csrf": found[1]}


def sign_out(api: Server, cookie: dict[str, str]) -> httpx.Response:
    answer = api.client.post("/sign-out", headers=cookie, data=csrf_of(api, cookie))
    assert (answer.status_code, answer.headers["location"]) == (303, "/sign-in")
    return answer


def is_known(api: Server, cookie: dict[str, str]) -> bool:
    return {200: True, 401: False}[api.status("GET", "/trainyard/v1/me", cookie)]


def ended(api: Server) -> int:
    with api.use_cases.backend.store.read() as reader:
        return reader.session.query(UsedTokenRow).count()


def test_sign_out_needs_the_csrf_value(api: Server) -> None:
    cookie = cookie_of(enter(api, token="alices-secret"))
    assert api.status("POST", "/sign-out", cookie) == 403
    assert api.status("POST", "/sign-out", cookie, data={"csrf": "wrong"}) == 403
    refused = api.client.post("/sign-out", headers=cookie | {"Accept": "text/html"}, data={"csrf": "wrong"})
    assert (refused.status_code, refused.headers["Content-Type"]) == (403, "text/html; charset=utf-8")
    assert api.status("POST", "/sign-out", cookie | ALICE) == 303, "by a token: nothing is revoked"
    assert is_known(api, cookie)
    assert sign_out(api, cookie).headers["set-cookie"].startswith("trainyard-80=; Path=/; Max-Age=0;")


def test_sign_out_ends_every_copy_of_the_cookie(api: Server, clock: Clock) -> None:
    """Neither the one that was there first nor the one that gave the session more time; other sessions stay."""
    first = cookie_of(enter(api, token="alices-secret"))
    other = cookie_of(enter(api, token="alices-secret"))
    clock.advance(LIFETIME.total_seconds() / 2)
    second = cookie_of(api.client.get("/", headers=first))
    assert second != first
    assert is_known(api, first)
    sign_out(api, second)
    assert [is_known(api, cookie) for cookie in (first, second, other)] == [False, False, True]
    answer = api.client.get("/cluster", headers=first | {"Accept": "text/html"})
    assert (answer.status_code, answer.headers["location"]) == (303, "/sign-in?next=/cluster")
    assert "set-cookie" not in answer.headers
    assert "You are signed in" not in api.client.get("/sign-in", headers=first).text


def test_revoked_session_stays_revoked_after_a_restart(tmp_path: Path, clock: Clock) -> None:
    with server(tmp_path, clock) as before:
        cookie = cookie_of(enter(before, token="alices-secret"))
        sign_out(before, cookie)
    with server(tmp_path, clock) as after:
        assert not is_known(after, cookie)
        assert is_known(after, cookie_of(enter(after, token="alices-secret")))


def test_second_sign_out_redirects_to_the_sign_in_page(api: Server) -> None:
    """Two tabs, the second of which does not know of it yet."""
    cookie = cookie_of(enter(api, token="alices-secret"))
    csrf = csrf_of(api, cookie)
    sign_out(api, cookie)
    answer = api.client.post("/sign-out", headers=cookie | {"Accept": "text/html"}, data=csrf)
    assert (answer.status_code, answer.headers["location"]) == (303, "/sign-in")
    assert api.client.post("/sign-out", headers=cookie, data=csrf).status_code == 401
    assert ended(api) == 1


def test_replaced_session_is_revoked(api: Server) -> None:
    old = cookie_of(enter(api, token="admin-secret"))
    for fields, status in (({"token": "wrong"}, 401), ({"token": "agent-secret"}, 403), ({"code": "wrong"}, 401)):
        assert enter(api, old, **fields).status_code == status
    assert is_known(api, old)
    new = cookie_of(enter(api, old, token="alices-secret"))
    assert [is_known(api, cookie) for cookie in (old, new)] == [False, True]
    newer = cookie_of(enter(api, new, code=code_for(api, ALICE)))  # the same account: no question
    assert [is_known(api, cookie) for cookie in (new, newer)] == [False, True]


def test_link_for_another_account_asks_before_it_replaces_the_session(api: Server) -> None:
    old = cookie_of(enter(api, token="admin-secret"))
    foreign = csrf_of(api, cookie_of(enter(api, token="veras-secret")))
    code = code_for(api, ALICE)
    for fields in ({}, {"csrf": ""}, {"csrf": "wrong"}, foreign):
        asked = enter(api, old, code=code, next="/cluster", **fields)
        assert asked.status_code == 200
        assert "You are signed in as <strong>admin</strong>. Sign in as <strong>alice</strong>" in asked.text
        assert "set-cookie" not in asked.headers
        assert is_known(api, old)
    sent = dict(re.findall(r'name="(csrf|next|code)" value="([^"]*)"', asked.text))
    assert sent == {**csrf_of(api, old), "next": "/cluster", "code": code}
    answer = enter(api, old, **sent)
    assert (answer.status_code, answer.headers["location"]) == (303, "/cluster")
    assert is_known(api, cookie_of(answer))
    assert not is_known(api, old)
    assert enter(api, cookie_of(answer), code=code_for(api, ADMIN)).status_code == 200
    assert enter(api, old, code=code_for(api, VERA)).status_code == 303, "an ended session is none"
