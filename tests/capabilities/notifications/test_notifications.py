"""Notifications: who gets which event, that each arrives, and where none is sent."""

import base64
import hashlib
import hmac
import ipaddress
import json
import random
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from beds.databases import on_every_database
from beds.services.receivers import HttpReceiver, http_receiver, mail_server
from integration.api.api_support import ADMIN, ALICE, BOB, VERA, Clock, ScriptedAgent, Server, server
from trainyard_server.capabilities.notifications import webhooks
from trainyard_server.capabilities.notifications.delivery import refused_address, signed_headers
from trainyard_server.capabilities.notifications.options import NotificationOptions
from trainyard_server.capabilities.notifications.sender import Sender
from trainyard_server.capabilities.notifications.tables import MetricAlertRow

CHANNELS = "/trainyard/v1/projects/p/channels"
LOCAL = {"options": (NotificationOptions(local_webhooks=True),), "public_url": "https://trains.example.com"}


@pytest.fixture
def receiver() -> Iterator[HttpReceiver]:
    with http_receiver() as receiver:
        yield receiver


@pytest.fixture
def api(tmp_path: Path, clock: Clock) -> Iterator[Server]:
    with server(tmp_path / "server", clock, **LOCAL) as api:
        yield api


def set_channel(api: Server, name: str, address: str, **given: Any) -> None:
    api.done("PUT", f"{CHANNELS}/{name}", json={"address": address, **given})


def deliver(api: Server, steps: int = 1) -> None:
    for _ in range(steps):
        api.client.run(api.use_cases.of(Sender).step)
        api.client.run(api.use_cases.of(Sender).settle)


def start(api: Server, agent: ScriptedAgent, job_id: str, **training_input: Any) -> None:
    api.create(job_id, **training_input)
    agent.begin()


def run(api: Server, agent: ScriptedAgent, job_id: str, code: int = 0, **training_input: Any) -> None:
    """A job from its submission to its end."""
    start(api, agent, job_id, **training_input)
    api.clock.advance(72)
    agent.exit(code=code)
    agent.turn()


def notified(api: Server, **params: str) -> list[tuple[str, str, str, str]]:
    rows = api.get("/trainyard/v1/projects/p/notifications", **params)["notifications"]
    return [(row["job_id"], row["event"], row["to"], row["state"]) for row in reversed(rows)]


@on_every_database
def test_channels_and_jobs_get_their_events(api: Server, agent: ScriptedAgent, receiver: HttpReceiver) -> None:
    set_channel(api, "team", receiver.url)
    set_channel(api, "by-name", receiver.url.replace("team=1", "named"), events=[])
    run(api, agent, "fine")
    run(api, agent, "asked", notifications=[{"to": "by-name"}, {"to": "team", "events": ["failure"]}])
    run(api, agent, "bad", code=3)
    deliver(api, steps=3)
    assert notified(api) == [("asked", "end", "by-name", "delivered"), ("bad", "failure", "team", "delivered")]
    failed, ended = sorted(receiver.accepted, key=lambda body: str(body["type"]))
    assert (ended["type"], ended["job"]["jobId"], ended["job"]["state"]) == ("job.succeeded", "asked", "SUCCEEDED")
    assert ended["message"] == "Job asked succeeded after 1m 12s."
    assert failed["type"] == "job.failed"
    assert failed["url"] == "https://trains.example.com/projects/p/jobs/bad"
    assert failed["message"].startswith("Job bad failed after 1m 12s: ")
    assert failed["job"]["errorMessage"] in failed["message"]
    assert failed["job"]["owner"] == "admin"
    deliver(api)
    assert len(receiver.requests) == 2, "each is sent once"


def test_signature_is_that_of_standard_webhooks(api: Server, agent: ScriptedAgent, receiver: HttpReceiver) -> None:
    set_channel(api, "team", receiver.url)
    run(api, agent, "bad", code=3)
    deliver(api)
    ((headers, body),) = receiver.requests
    key = base64.b64decode(api.get("/trainyard/v1/projects/p/notifications/signingKey")["key"].removeprefix("whsec_"))
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    assert headers["webhook-signature"] == f"v1,{base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode()}"
    assert int(headers["webhook-timestamp"]) == int(api.clock().timestamp())
    assert headers["webhook-id"] == json.loads(body)["id"]
    other = api.get("/trainyard/v1/projects/q/notifications/signingKey")["key"]
    assert base64.b64decode(other.removeprefix("whsec_")) != key
    # The example of the specification's reference implementation.
    known = base64.b64decode("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    example = signed_headers(known, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}')
    assert example["webhook-signature"] == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def test_metric_beyond_its_bound_is_told_once(api: Server, agent: ScriptedAgent, receiver: HttpReceiver) -> None:
    events = ["loss > 5", "accuracy>=0.9", "loss < 0.01", "missing > 0"]
    start(api, agent, "job", notifications=[{"to": receiver.url, "events": events}])
    agent.report_steps(loss=[4, 7.25, 1], accuracy=[0.9] * 3)
    deliver(api, steps=2)
    agent.log(json.dumps({"step": 4, "loss": 9, "accuracy": 0.95}))
    agent.exit()
    api.tick()
    deliver(api, steps=2)
    to = f"{receiver.url.split('/hook')[0]}/..."
    expected = [("job", "loss > 5", to, "delivered"), ("job", "accuracy >= 0.9", to, "delivered")]
    assert sorted(notified(api)) == sorted(expected)
    (loss,) = [body for body in receiver.accepted if body["metric"]["name"] == "loss"]
    assert loss["metric"] == {"name": "loss", "value": 7.25, "bound": "loss > 5"}
    api.clock.advance(3600)
    deliver(api)  # the bounds of ended jobs are forgotten
    with api.use_cases.backend.store.read() as reader:
        assert reader.session.query(MetricAlertRow).count() == 0


def test_flaky_receiver_gets_each_event_in_order(tmp_path: Path, receiver: HttpReceiver) -> None:
    """Answers are errors at random, the server restarts, and the receiver is away for two hours."""
    luck, clock = random.Random(1), Clock()
    receiver.answers = lambda _: luck.choice((200, 500, 503, 429, 400, 302))
    jobs = [f"job_{number}" for number in range(6)]
    for part in range(3):
        with server(tmp_path / "server", clock, **LOCAL) as api:
            agent = ScriptedAgent(api)
            agent.sync()
            for job in jobs[part * 2 : part * 2 + 2]:
                notifications = [{"to": receiver.url, "events": ["end", "loss > 1"]}]
                start(api, agent, job, notifications=notifications)
                agent.report_steps(loss=2)
                deliver(api)
                agent.exit(code=luck.choice((0, 3)))
                agent.turn()
                clock.advance(luck.choice((0, 5, 60)))
                deliver(api)
    receiver.answers = lambda _: 503
    with server(tmp_path / "server", clock, **LOCAL) as api:
        for _ in range(8):
            clock.advance(900)
            deliver(api)
        receiver.answers = lambda _: 200
        for _ in range(15):
            clock.advance(600)
            deliver(api, steps=2)
        assert {state for *_, state in notified(api)} == {"delivered"}
    first_sent = dict.fromkeys((body["job"]["jobId"], body["type"] == "job.metric") for body in receiver.accepted)
    assert sorted(first_sent) == sorted((job, is_bound) for job in jobs for is_bound in (True, False))
    for job in jobs:
        assert [is_bound for name, is_bound in first_sent if name == job] == [True, False]
    assert len({body["id"] for body in receiver.accepted}) == 12


def test_absent_receiver_is_asked_less_and_less(api: Server, agent: ScriptedAgent, receiver: HttpReceiver) -> None:
    receiver.answers = lambda _: 503
    set_channel(api, "team", receiver.url)
    for number in range(8):
        run(api, agent, f"job_{number}", code=3)
    for _ in range(240):
        api.clock.advance(30)
        deliver(api)
    assert len(receiver.requests) < 25, "in two hours, whatever the number of jobs"
    (channel,) = api.get(CHANNELS)["channels"]
    assert (channel["pending"], channel["last_error"]) == (8, "it answered 503")
    api.clock.advance(3 * 86400)
    deliver(api, steps=25)
    for _ in range(40):
        api.clock.advance(900)
        deliver(api)
    assert {state for *_, state in notified(api)} == {"failed"}, "after three days"


def test_failures_without_an_answer_look_alike_to_submitters_and_are_exact_for_operators(
    tmp_path: Path,
    clock: Clock,
    receiver: HttpReceiver,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(webhooks, "_TIMEOUT_S", 0.5)
    interface = SimpleNamespace(family=socket.AF_INET, address="10.77.0.5")
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: {"eth7": [interface]})
    refused, port = "where webhooks do not go: the operator allows it by --local-webhooks", receiver.url.split("/")[2]
    with socket.create_server(("127.0.0.1", 0)) as tarpit, http_receiver() as strange:
        strange.answers = lambda _: 99  # no status of HTTP
        tarpit_port, strange_port = tarpit.getsockname()[1], strange.url.split("/")[2]
        cases = (
            (True, "http://127.0.0.1:1/", "All connection attempts failed"),
            (True, f"http://127.0.0.1:{tarpit_port}/", "no answer within 0.5 s"),
            (True, f"https://{port}/", "SSL"),
            (True, f"http://{strange_port}/", "illegal status line"),
            (True, "http://nobody.invalid/", "Name or service not known|name resolution"),
            (False, "http://127.0.0.1:1/", rf"127.0.0.1 is 127.0.0.1 \(loopback\), {refused}"),
            (False, "http://localhost:1/", rf"\(loopback\), {refused}"),
            (False, receiver.url, refused),
            (False, "http://[::1]:1/", refused),
            (False, "http://2130706433/", refused),
            (False, "http://169.254.169.254/latest", rf"\(link-local\), {refused}"),
            (False, "http://[fd00:ec2::254]/latest", rf"\(cloud metadata\), {refused}"),
            (False, "http://0.0.0.0/", refused),
            (False, "http://10.77.0.5/", rf"\(this machine's own\), {refused}"),
            (False, "http://[::ffff:10.77.0.5]/", rf"\(this machine's own\), {refused}"),
        )
        wrong = []
        for is_local in (True, False):
            options = NotificationOptions(local_webhooks=is_local)
            with server(tmp_path / str(is_local), clock, options=(options,)) as api:
                for _, url, cause in (case for case in cases if case[0] is is_local):
                    caplog.clear()
                    set_channel(api, "team", url)
                    shown, exact = (
                        api.client.post(f"{CHANNELS}/team:test", headers=caller).json()["error"]
                        for caller in (ALICE, ADMIN)
                    )
                    logged = "\n".join(caplog.messages)
                    if shown != webhooks.NOT_REACHED or not all(re.search(cause, text) for text in (exact, logged)):
                        wrong.append((url, shown, exact, logged))
    assert wrong == []
    assert receiver.requests == []


def test_addresses_that_are_refused() -> None:
    own = {ipaddress.ip_address(address) for address in ("192.168.7.7", "2001:db8::7")}
    refused = (
        *("127.0.0.1", "127.8.8.8", "::1", "0.0.0.0", "0.1.2.3", "::", "169.254.0.1", "fe80::1%eth0", "224.0.0.1"),
        *("ff02::1", "240.0.0.1", "255.255.255.255"),
        *("100.100.100.200", "168.63.129.16", "192.0.0.192", "fd00:ec2::254", "fd20:ce::254", "fd00:c1::a9fe:a9fe"),
        *("::ffff:127.0.0.1", "::127.0.0.1", "::ffff:0:127.0.0.1", "64:ff9b::127.0.0.1", "64:ff9b:1::127.0.0.1"),
        *("64:ff9b::169.254.169.254", "64:ff9b::100.100.100.200", "2002:7f00:1::1", "2002:a9fe:a9fe::"),
        *("2001:0:7f00:1::1", "2001:0:808:808::80ff:fffe", "::ffff:168.63.129.16"),
        *("192.168.7.7", "2001:db8::7", "::ffff:192.168.7.7", "64:ff9b::192.168.7.7", "2002:c0a8:707::1"),
    )
    allowed = (
        *("10.0.0.1", "172.16.1.1", "192.168.1.2", "fd12::1", "100.64.0.1", "8.8.8.8", "2001:db8::1"),
        *("2606:4700::1111",),
        *("::ffff:10.0.0.1", "64:ff9b::8.8.8.8", "2002:808:808::1", "2001:0:808:808::f7f7:f7f7"),
    )
    wrong = [address for address in refused if not refused_address(address, own)]
    assert [*wrong, *(address for address in allowed if refused_address(address, own))] == []


def test_slack_gets_its_format_and_a_redirect_is_an_error(
    api: Server, agent: ScriptedAgent, receiver: HttpReceiver
) -> None:
    set_channel(api, "chat", receiver.url, format="slack", events=["end"])
    receiver.answers = lambda number: 307 if number == 0 else 200
    assert api.done("POST", f"{CHANNELS}/chat:test", ALICE) == {"error": "it answered 307"}
    assert len(receiver.requests) == 1
    start(api, agent, "job")
    agent.report_steps(loss=0.25)
    agent.exit()
    api.tick()
    deliver(api)
    (body,) = receiver.accepted
    text = "Job job succeeded after 0s.\nloss = 0.25\n<https://trains.example.com/projects/p/jobs/job|p>"
    assert body == {"text": text}


def test_mail_is_sent_by_the_mail_server(tmp_path: Path, clock: Clock) -> None:
    with mail_server() as mails:
        options = NotificationOptions(smtp=mails.address, sender="trains@example.com", security="none")
        with server(tmp_path, clock, options=(options,)) as api:
            agent = ScriptedAgent(api)
            agent.sync()
            mails.refused["gone@example.com"] = "550 no such user"
            mails.refused["full@example.com"] = "452 mailbox full"
            to = [{"to": f"{name}@example.com"} for name in ("ana", "gone", "full")]
            run(api, agent, "job", code=3, notifications=to)
            deliver(api, steps=2)
            states = {to.partition("@")[0]: state for _, _, to, state in notified(api, job="job")}
            assert states == {"ana": "delivered", "gone": "failed", "full": "pending"}
            mails.refused.clear()
            clock.advance(60)
            deliver(api)
    (ana, mail), (full, _) = mails.mails
    assert (ana, full) == ("ana@example.com", "full@example.com")
    assert (mail["From"], mail["To"]) == ("trains@example.com", "ana@example.com")
    assert mail["Subject"] == "[p] Job job failed after 1m 12s"
    assert mail["Auto-Submitted"] == "auto-generated"
    text = mail.get_payload(decode=True)
    assert isinstance(text, bytes)
    assert "Owner:    admin" in text.decode()


def test_mail_server_without_the_tls_that_is_set_names_the_option(tmp_path: Path, clock: Clock) -> None:
    cases = {
        "starttls": ("STARTTLS extension not supported by server", "starttls; allowed: starttls, tls, none"),
        "tls": ("WRONG_VERSION_NUMBER", "tls; allowed: starttls, tls, none"),
        "none": ("530 Must issue a STARTTLS command first", "none; allowed: starttls, tls, none"),
    }
    wrong = []
    with mail_server() as mails:
        mails.refused["trains@example.com"] = "530 Must issue a STARTTLS command first"
        for security, (cause, allowed) in cases.items():
            options = NotificationOptions(mails.address, "trains@example.com", security=security)
            with server(tmp_path / security, clock, options=(options,)) as api:
                set_channel(api, "ana", "ana@example.com")
                error = api.client.post(f"{CHANNELS}/ana:test", headers=ALICE).json()["error"]
                if cause not in error or f"(--smtp-security is {allowed})" not in error:
                    wrong.append(error)
    assert wrong == []


def test_studies_tell_their_own_end(api: Server, agent: ScriptedAgent, receiver: HttpReceiver) -> None:
    space = [{"parameterName": "lr", "type": "DISCRETE", "discreteValues": [1, 2]}]
    hyperparameters = {"maxTrials": 2, "maxParallelTrials": 2, "algorithm": "GRID_SEARCH", "params": space}
    set_channel(api, "team", receiver.url, events=["end", "failure"])
    api.create("study", hyperparameters=hyperparameters, notifications=[{"to": receiver.url, "events": ["loss > 1"]}])
    for _ in range(4):
        agent.turn()
    for order in list(agent.runs.values()):
        agent.start(order)
        agent.log(json.dumps({"step": 1, "loss": 2}), run=order)
        api.use_cases.backend.progress.flush()
        agent.exit(run=order)
        agent.sync()
    for _ in range(4):
        agent.turn()
    deliver(api, steps=6)
    events = [(job, event) for job, event, *_ in notified(api)]
    assert sorted(events) == [("study", "end"), ("study.1", "loss > 1"), ("study.2", "loss > 1")]


def test_changed_and_deleted_channels(api: Server, agent: ScriptedAgent, receiver: HttpReceiver) -> None:
    set_channel(api, "team", "http://127.0.0.1:1/", events=["end"])
    set_channel(api, "old", "http://127.0.0.1:1/old", events=["end"])
    run(api, agent, "job", notifications=[{"to": "old", "events": ["stall"]}])
    deliver(api)
    set_channel(api, "team", receiver.url, events=["end"])
    assert api.status("DELETE", f"{CHANNELS}/old") == 200
    api.clock.advance(60)
    deliver(api)
    assert notified(api) == [("job", "end", "team", "delivered")]
    assert api.status("DELETE", f"{CHANNELS}/old") == 404
    assert receiver.url not in api.client.get(CHANNELS, headers=VERA).text, "the path of a URL is a secret"


def test_wrong_channels_and_destinations_are_refused(api: Server) -> None:
    def refusal(address: str, name: str = "team", **given: Any) -> str:
        body = {"address": address, **given}
        return str(api.refusal("PUT", f"{CHANNELS}/{name}", 400, json=body)["message"])

    assert "Did you mean" in refusal("a@b.c", events=["failures"])
    assert "not a channel's name" in refusal("a@b.c", name="Team")
    assert "is json or slack" in refusal("a@b.c", format="slack")
    for address in ("ftp://x/", "http://", "http://a@b/", "nobody", "a@b@c", "http://x/\n", "x" * 4000):
        refusal(address)

    table: list[tuple[dict[str, Any], str]] = [
        ({"to": "team"}, "has no channel team"),
        ({"to": "ana@example.com"}, "has no mail server"),
        ({"to": "http://x/", "events": ["loss > high"]}, "not end, failure, stall"),
        ({"to": "http://x/", "events": ["end"] * 11}, "at most 10"),
        ({"to": "Team!"}, "is not a channel of the project"),
    ]
    for given, says in table:
        answer = api.submit(who=BOB, notifications=[given])
        assert (answer.status_code, says in answer.json()["error"]["message"]) == (400, True), answer.text


def test_deleted_job_and_stalled_run(api: Server, agent: ScriptedAgent, receiver: HttpReceiver) -> None:
    receiver.answers = lambda number: 200 if number else 503
    run(api, agent, "job", notifications=[{"to": receiver.url, "events": ["end", "x > 1"]}])
    deliver(api)
    api.delete_job()
    api.clock.advance(60)
    deliver(api)
    assert notified(api)[0][3] == "delivered", "what was pending of a deleted job is sent"


def test_notification_that_cannot_be_made_waits_as_others_do(
    api: Server, agent: ScriptedAgent, receiver: HttpReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_channel(api, "team", receiver.url)
    run(api, agent, "bad", code=3)

    async def broken(*_: object) -> None:
        raise KeyError("url")

    with monkeypatch.context() as patch:
        patch.setattr(api.use_cases.of(Sender), "send", broken)
        deliver(api, steps=3)
    (row,) = api.get("/trainyard/v1/projects/p/notifications")["notifications"]
    assert (row["state"], row["attempts"], row["error"]) == ("pending", 1, "it could not be made (KeyError)")
    api.clock.advance(60)
    deliver(api)
    assert len(receiver.accepted) == 1
