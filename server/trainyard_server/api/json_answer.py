"""JSON answers that are written by the thread that made them."""

from typing import Any

from fastapi.responses import JSONResponse
from pydantic_core import to_json


class JsonAnswer(JSONResponse):
    """A value or a model of ours as JSON. FastAPI would check it against its type in another thread first, which takes
    longer than to write it: for routes that are called often."""

    def render(self, content: Any) -> bytes:
        return to_json(content, by_alias=True, inf_nan_mode="null")
