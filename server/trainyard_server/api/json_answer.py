"""JSON answers that are written by the thread that made them."""

from collections.abc import Iterable
from typing import Any

from fastapi.responses import JSONResponse
from pydantic_core import to_json

from trainyard_protocol.net.warning_headers import WARNING, warning_value


class JsonAnswer(JSONResponse):
    """A value or a model of ours as JSON. FastAPI would check it against its type in another thread first, which takes
    longer than to write it: for routes that are called often."""

    def render(self, content: Any) -> bytes:
        return to_json(content, by_alias=True, inf_nan_mode="null")


def with_warnings(answer: JsonAnswer, texts: Iterable[str]) -> JsonAnswer:
    """The answer with texts for people about what may not be meant; letters beyond ASCII are escaped."""
    for text in texts:
        answer.headers.append(WARNING, warning_value(text.encode("ascii", "backslashreplace").decode()))
    return answer
