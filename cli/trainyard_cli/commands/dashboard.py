"""`trainyard dashboard`: the server's pages in a browser, signed in."""

import os
import webbrowser
from collections.abc import Callable, Mapping

import click

from trainyard_cli.local.connect import connect, say
from trainyard_cli.settings import Where


def show(where: Where, *, open_it: bool, launch: Callable[[str], bool] = webbrowser.open) -> None:
    """Opens the dashboard; prints the link where there is no browser, or where that is what was asked for.

    The link signs in by a code that is good once and for two minutes. It stands behind the `#`, which no browser sends
    to any server, so that no log has it.
    """
    with connect(where) as client:
        code = client.sign_in_code()
    link = f"{client.server.url}/sign-in#{code.code}"
    if open_it and has_browser(os.environ) and launch(link):
        click.echo(f"{client.server.url}/ is opened in your browser, as {code.name} ({code.role}).")
        return
    say(f"This link signs you in as {code.name} ({code.role}), once and within two minutes:")
    click.echo(link)


def has_browser(environment: Mapping[str, str]) -> bool:
    """Whether a browser with windows can be started here; one of the terminal would only be in the way."""
    return any(environment.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"))
