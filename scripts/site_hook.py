"""Hook of mkdocs: how-tos come before the reference in the results of the search."""

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import Files
from mkdocs.structure.pages import Page

_BOOST = 0.3


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001
    """Give the pages of the reference less weight than others, as the theme reads it from a page's front matter."""
    if page.file.src_uri.startswith("reference/"):
        page.meta["search"] = {"boost": _BOOST}
    return markdown
