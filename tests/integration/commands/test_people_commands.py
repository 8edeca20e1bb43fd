"""`trainyard login`, `tokens` and `projects` against a server behind a socket."""

import json

import pytest

from integration.shells import OPERATOR, Shell


def test_operator_lets_a_person_in_who_logs_in_and_makes_a_token(shell: Shell) -> None:
    out = shell.out(f"login {shell.url}/ --token-file -", OPERATOR)
    assert out == f"Logged in to {shell.url} as admin (admin of all projects). Commands use that server from now on.\n"
    code, out, err = shell("projects add-member carl --role submitter --project vision")
    assert (code, out, err) == (0, "", "carl is a submitter of the project vision.\n")
    carls = shell.out("tokens create --for carl --expires 90d --description laptop")
    out = shell.out(f"login {shell.url} --token-file -", carls)
    assert "as carl (submitter of vision)" in out
    assert shell.out("projects list") == "PROJECT  ROLE\nvision   submitter\n"
    members = [row.split()[:3] for row in shell.out("projects members vision").splitlines()]
    assert members[:2] == [["NAME", "ROLE", "IN"], ["carl", "submitter", "vision"]]
    assert ["admin", "admin", "all"] in members[2:]
    rows = shell.out("tokens list").splitlines()
    assert [row.split()[1:3] for row in rows] == [["OWNER", "STATE"], ["carl", "valid"]]
    again = json.loads(shell.out("tokens create --format json"))
    assert shell("tokens revoke " + again["token"]["token_id"])[0] == 0
    assert "revoked" in shell.out("tokens list")
    assert "Only an operator" in shell("tokens revoke --owner carl")[2]
    shell.out(f"login {shell.url} --token-file -", OPERATOR)
    assert shell("tokens revoke --owner carl")[2].count("of carl.\n") == 1, "the valid one"
    assert "carl has no valid token" in shell("tokens revoke --owner carl")[2]
    assert shell("logout")[0] == 0
    code, _, err = shell("projects list")
    assert (code, "trainyard login" in err) == (1, True), err


def test_revocation_names_what_the_token_made(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    def made(flags: str = "") -> tuple[str, str]:
        token = json.loads(shell.out(f"tokens create --format json {flags}"))
        return token["token"]["token_id"], token["secret"]

    def leaked() -> tuple[str, str]:
        """A token of an operator, and one of dora's that was made with it."""
        shell.out(f"login {shell.url} --token-file -", OPERATOR)
        first, secret = made("--for carl")
        shell.out(f"login {shell.url} --token-file -", secret)
        second, _ = made("--for dora")
        shell.out(f"login {shell.url} --token-file -", OPERATOR)
        return first, second

    def states() -> dict[str, str]:
        rows = [row.split() for row in shell.out("tokens list --all").splitlines()[1:]]
        return {row[0]: row[2] for row in rows}

    shell.out(f"login {shell.url} --token-file -", OPERATOR)
    shell("projects add-member carl --role admin --all-projects")
    first, second = leaked()
    (listed,) = [row for row in shell.out("tokens list --all").splitlines() if row.startswith(second)]
    assert first in listed
    err = shell(f"tokens revoke {first}")[2]
    assert f"1 token was made with it, still valid: {second} of dora." in err
    assert (states()[first], states()[second]) == ("revoked", "valid")
    err = shell(f"tokens revoke {first} --recursive")[2]
    assert f"Revoked the token [{second}] of dora." in err
    assert states()[second] == "revoked"

    first, second = leaked()
    asked: list[str] = []
    monkeypatch.setattr("trainyard_cli.commands.people.people._is_asked", lambda: True)

    def confirm(text: str, **_: object) -> bool:
        asked.append(text)
        return True

    monkeypatch.setattr("click.confirm", confirm)
    err = shell(f"tokens revoke {first}")[2]
    assert (f"{second} of dora" in err, asked) == (True, ["Revoke them too?"])
    assert states()[second] == "revoked"

    third, _ = made("--for dora")
    (file_token,) = {token for token, state in states().items() if state == "in" and token in shell.out("tokens list")}
    assert f"Revoked the token [{third}] of dora." in shell(f"tokens revoke {file_token} --recursive")[2]


def test_refusals_say_what_to_do(shell: Shell) -> None:
    assert shell(f"login {shell.url} --token-file -", "trainyard_wrong")[::2] == (
        1,
        "ERROR: This is not a token of this server, or it has expired or was revoked.\n",
    )
    assert "no terminal to ask" in shell(f"login {shell.url}")[2]
    assert "no saved login" in shell("logout")[2]
    shell.out(f"login {shell.url} --token-file -", OPERATOR)
    assert "at most 366d" in shell("tokens create --expires 400d")[2]
    assert "At most one of --agent | --for" in shell("tokens create --for a --agent b")[2]
    assert "There is no token nope" in shell("tokens revoke nope")[2]
    assert "Exactly one of ID... | --owner" in shell("tokens revoke")[2]
    nina = shell.out("tokens create --for nina")
    shell.out(f"login {shell.url} --token-file -", nina)
    code, out, err = shell("projects list")
    assert (code, out, "You have no role in any project yet" in err) == (0, "", True)
    code, _, err = shell("projects members vision")
    assert (code, "who has no role in the project vision (or it does not exist)" in err) == (1, True)


def test_audit_is_listed_as_a_table_and_as_lines_of_json(shell: Shell) -> None:
    shell.out(f"login {shell.url} --token-file -", OPERATOR)
    shell("projects add-member carl --role viewer --project vision")
    shell("projects remove-member carl --project vision")
    shell("tokens revoke nope")
    first, *rows = shell.out("audit list").splitlines()
    assert first.split() == ["TIME", "ACTOR", "ACTION", "PROJECT", "SUBJECT", "OUTCOME", "FROM"]
    assert [row.split()[1:] for row in rows] == [
        ["admin", "tokens.revoke", "nope", "refused", "(404)", "127.0.0.1"],
        ["admin", "members.remove", "vision", "carl", "done", "127.0.0.1"],
        ["admin", "members.set", "vision", "carl", "done", "127.0.0.1"],
    ]
    code, out, err = shell("audit list --project vision --actor admin --since 1000d --limit 1 --format json")
    (line,) = map(json.loads, out.splitlines())
    assert (line["action"], line["time"], line["count"]) == ("members.remove", "2026-11-20T12:00:00Z", 1)
    assert (code, "more than 1 rows" in err) == (0, True)
    assert shell("audit list --action sign-in") == (0, "", "Listed 0 items.\n")
    assert "must be a time such as" in shell("audit list --since yesterday")[2]
