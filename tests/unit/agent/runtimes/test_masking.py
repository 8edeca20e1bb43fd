"""Secrets in output: masked wherever they stand, however the output is chunked."""

import base64
import html
import json
import re
import shlex
from urllib.parse import quote, quote_plus, urlencode
from xml.sax import saxutils

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainyard_agent.installer.output import EVENT
from trainyard_agent.runtimes import installing
from trainyard_agent.runtimes.masking import Mask
from trainyard_agent.runtimes.supervisor import LineSplitter

TOKEN = 'p/w"d&\\é'
KEY = '{\n  "type": "account",\n  "key": "-----BEGIN KEY-----\\nMII\\n"\n}\n'

FORMS = {
    "as it is": (f"a{TOKEN}b", "a***b"),
    "twice": (TOKEN * 2, "******"),
    "in JSON": (json.dumps({"token": TOKEN}), '{"token": "***"}'),
    "in JSON, readable": (json.dumps([TOKEN], ensure_ascii=False), '["***"]'),
    "in a URL": (f"https://me:{quote(TOKEN, safe='')}@host/", "https://me:***@host/"),
    "in base64": (f"<{base64.b64encode(TOKEN.encode()).decode()}>", "<***>"),
    "in base64, with more behind": (base64.b64encode(f"{TOKEN}\n".encode()).decode(), "***"),
    "a line of several": ('before "type": "account", after', "before *** after"),
    "a short line of several": ("}", "}"),
    "several lines in one": (json.dumps(KEY), '"***\\n"'),
    "something else": ("p/w and MII", "p/w and MII"),
}


@pytest.mark.parametrize("form", FORMS)
def test_secret_is_masked_in_the_forms_that_programs_print(form: str) -> None:
    printed, shown = FORMS[form]
    masked = Mask([TOKEN, KEY]).text(printed)
    assert masked.startswith(shown) if form.endswith("behind") else masked == shown


PASSWORD = "s3cr et/+w'ö&<x>:@%\"\\y"
KEY_FIELDS = {
    "type": "service_account",
    "project_id": "project-of-the-team",
    "private_key_id": "0123456789abcdef",
    "private_key": "-----BEGIN PRIVATE KEY-----\nMIIEvQIBADANBg+k/hkiG9w0\nBAQEFAASC+KcwggSj/==\n"
    "-----END PRIVATE KEY-----\n",
    "client_email": "me@project-of-the-team.iam.gserviceaccount.com",
    "token_uri": "https://oauth2.googleapis.com/token",
    "more": [{"refresh_token": "1//0-refresh"}],
}
KEY_FILE = json.dumps(KEY_FIELDS)
DATABASE = "postgresql+psycopg://ann:p%40ss+w0rd@db:5432/runs?sslmode=require"
SLASHED = "mysql://bob:pa/ss#w0rd@db/runs"


def lower(text: str) -> str:
    return re.sub("%..", lambda match: match[0].lower(), text)


CLIENTS = {
    "quote": quote(PASSWORD),
    "quote, all": quote(PASSWORD, safe=""),
    "quote_plus": quote_plus(PASSWORD),
    "quote, lower case": lower(quote(PASSWORD)),
    "quote_plus, lower case": lower(quote_plus(PASSWORD)),
    "a form": urlencode({"password": PASSWORD}).removeprefix("password="),
    "SQLAlchemy": quote(PASSWORD, safe=" +"),
    "SQLAlchemy 1": PASSWORD.replace(":", "%3A").replace("@", "%40").replace("/", "%2F"),
    "encodeURIComponent": quote(PASSWORD, safe="!~*'()"),
    "requests": quote(PASSWORD, safe="!#$%&'()*+,/:;=?@[]~"),
    "urllib3, in a path": quote(PASSWORD, safe="!$&'()*+,;=:@/"),
    "html.escape": html.escape(PASSWORD),
    "html.escape, text": html.escape(PASSWORD, quote=False),
    "Jinja": html.escape(PASSWORD, quote=False).replace('"', "&#34;").replace("'", "&#39;"),
    "XML": saxutils.escape(PASSWORD, {'"': "&quot;", "'": "&apos;"}),
    "repr": repr(PASSWORD)[1:-1],
    "ascii": ascii(PASSWORD)[1:-1],
    "repr of bytes": repr(PASSWORD.encode())[2:-1],
    "JSON": json.dumps(PASSWORD)[1:-1],
    "JSON of Go": json.dumps(PASSWORD, ensure_ascii=False)[1:-1]
    .replace("&", "\\u0026")
    .replace("<", "\\u003c")
    .replace(">", "\\u003e"),
    "JSON of PHP": json.dumps(PASSWORD)[1:-1].replace("/", "\\/"),
    "JSON in JSON": json.dumps(json.dumps(PASSWORD))[3:-3],
    "bash -x": PASSWORD.replace("'", "'\\''"),
    "shlex.quote": shlex.quote(PASSWORD)[1:-1],
}


def test_secret_is_masked_as_clients_print_it() -> None:
    mask = Mask([PASSWORD])
    shown = {name: mask.text(f"error: <{printed}>!") for name, printed in CLIENTS.items()}
    assert shown == dict.fromkeys(CLIENTS, "error: <***>!")


def test_secret_behind_a_user_is_masked_in_base64() -> None:
    """Some bits of its first and last character are in characters that what is beside it changes: they are shown."""
    mask, shown = Mask([PASSWORD]), []
    for user in ("u", "us", "use", "user"):
        for behind in ("", "\n", "@host"):
            for encode in (base64.b64encode, base64.urlsafe_b64encode):
                for encoding in ("utf-8", "latin-1"):  # requests has the latter
                    text = encode(f"{user}:{PASSWORD}{behind}".encode(encoding)).decode()
                    masked = mask.text(f"Authorization: Basic {text}")
                    left = masked.removeprefix("Authorization: Basic ")
                    if left.count("***") != 1 or len(left) > 3 + len(f"{user}:{behind}") * 4 // 3 + 8:
                        shown.append((user, behind, encoding, masked))
    assert shown == []


def test_parts_of_a_value_that_are_secrets_are_masked_alone() -> None:
    mask = Mask([KEY_FILE, DATABASE, f'first\nURL="jdbc:{SLASHED}"'])
    private_key = KEY_FIELDS["private_key"]
    assert isinstance(private_key, str)
    expected = {
        KEY_FILE: "***",
        private_key: "***\n",
        private_key.replace("\n", ""): "*" * 12,
        repr({"private_key": private_key}): "{'private_key': '***\\n'}",
        json.dumps(json.dumps({"private_key": private_key})): '"{\\"private_key\\": \\"***\\\\n\\"}"',
        "key 0123456789abcdef of me@project-of-the-team.iam.gserviceaccount.com": "key *** of "
        "me@project-of-the-team.iam.gserviceaccount.com",
        "refresh_token=1%2F%2F0-refresh": "refresh_token=***",
        "POST https://oauth2.googleapis.com/token service_account": "POST https://oauth2.googleapis.com/token "
        "service_account",
        f"cannot connect: {DATABASE}": "cannot connect: ***",
        "password authentication: ann p@ss+w0rd": "password authentication: ann ***",
        "ann pa/ss#w0rd or pa%2Fss%23w0rd": "ann *** or ***",
        "postgresql://ann:p%40ss+w0rd@other/x": "postgresql://ann:***@other/x",
        "postgresql://ann:p%40ss%2Bw0rd@other/x": "postgresql://ann:***@other/x",
    }
    assert {printed: mask.text(printed) for printed in expected} == expected
    assert Mask(["[" * 50_000]).text("[[[[ is no JSON") == "[[[[ is no JSON"


def test_longest_secret_is_masked_and_no_value_masks_nothing() -> None:
    assert Mask(["abcd", "abcdef"]).text("abcdefg abcde") == "***g ***e"
    assert not Mask()
    assert Mask([""]).text("abcd") == "abcd"


secret = st.text('ab\n"\\é ', min_size=4, max_size=12).filter(lambda text: len(text.strip()) >= 4)


@given(st.lists(secret, min_size=1, max_size=3), st.lists(st.text('ab\n\r"\\é x', max_size=8)), st.data())
def test_no_chunk_of_output_shows_a_secret(values: list[str], between: list[str], data: st.DataObject) -> None:
    """Neither in a line that comes in parts, nor in one that is so long that it is split."""
    output = "".join(text + data.draw(st.sampled_from(values)) for text in between).encode()
    ends = sorted(data.draw(st.lists(st.integers(0, len(output)))))
    chunks = [output[a:b] for a, b in zip([0, *ends], [*ends, len(output)], strict=True)]

    def split(*parts: bytes) -> list[tuple[str, int]]:
        splitter = LineSplitter(max_line=10, progress=1000, mask=Mask(values))
        return [line for part in parts for line in splitter.feed(part)] + splitter.end()

    lines = split(*chunks)
    assert lines == split(output), "the same lines, however the output is chunked"
    hidden = {line.strip() for value in values for line in value.split("\n") if len(line.strip()) >= 8}
    hidden |= {value.strip() for value in values if "\n" not in value.strip()}
    whole = "".join(text if partial == 1 else f"{text}\n" for text, partial in lines)
    assert not [text for text in hidden if text in whole]


def test_activity_has_no_part_of_a_secret() -> None:
    secret = "s3cret-of-the-index"
    for before in range(150, 230):
        text = f"{'x' * before}{secret}{'y' * 200}"
        output = f"{EVENT}{json.dumps({'activity': text})}\nCollecting {secret}\n"
        shown = installing.last_activity(output, Mask([secret]))
        assert "s3c" not in shown, (before, shown)
        assert len(shown) <= 200, before
    assert installing.last_activity("Collecting six\n", Mask()) == ""
