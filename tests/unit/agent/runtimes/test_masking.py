"""Secrets in output: masked wherever they stand, however the output is chunked."""

import base64
import json
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

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


def test_longest_secret_is_masked_and_no_value_masks_nothing() -> None:
    assert Mask(["abcd", "abcdef"]).text("abcdefg abcde") == "***g ***e"
    assert not Mask()
    assert Mask([""]).text("abcd") == "abcd"


secret = st.text('ab\n"\\é ', min_size=4, max_size=12).filter(lambda text: len(text.strip()) >= 4)


@given(st.lists(secret, min_size=1, max_size=3), st.lists(st.text('ab\n\r"\\é x', max_size=8)), st.data())
def test_no_chunk_of_output_shows_a_secret(
    values: list[str], between: list[str], data: st.DataObject
) -> None:
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
