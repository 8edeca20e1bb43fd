"""Live parts of pages, as they are sent to browsers: the rows that changed, and what is around them if it changed."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

# The values of attributes are escaped: no `>` is in a tag. A row with a key has no table in it.
_ROW = re.compile(r'<tr\b[^>]* data-key="([^"]*)".*?</tr>', re.S)


@dataclass(frozen=True, slots=True)
class LivePart:
    """HTML of a live part: its rows with a `data-key`, and its frame, with a placeholder for each of them."""

    frame: str
    rows: Mapping[str, str]

    @classmethod
    def of(cls, html: str) -> Self:
        rows: dict[str, str] = {}

        def placeholder(match: re.Match[str]) -> str:
            key, row = match[1], match[0]
            if key in rows:  # two tables may have the same keys
                return row
            rows[key] = row
            return f'<tr data-key="{key}" data-same></tr>'

        return cls(_ROW.sub(placeholder, html), rows)

    def since(self, sent: Self | None) -> dict[str, object]:
        """The message that makes this of what was sent before: `rows`, new and changed, and the `frame` if it changed,
        which has the order of all rows."""
        if sent is None:
            return {"frame": self.frame, "rows": list(self.rows.values())}
        rows = [row for key, row in self.rows.items() if sent.rows.get(key) != row]
        return {"rows": rows} if self.frame == sent.frame else {"frame": self.frame, "rows": rows}
