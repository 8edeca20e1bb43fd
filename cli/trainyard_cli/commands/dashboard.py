"""`trainyard dashboard`: opens the dashboard in a browser, signed in."""

import os
import webbrowser
from collections.abc import Callable, Mapping

from trainyard_cli.local.connect import connect, notify
from trainyard_cli.output.safe import echo
from trainyard_cli.settings import Target


def show(target: Target, *, open_it: bool, launch: Callable[[str], bool] = webbrowser.open) -> None:
    """Open the dashboard, or print its link if there is no browser or `open_it` is false.

    The link holds a sign-in code that works once, for two minutes. The code follows the `#`, which browsers do not
    send, so no log contains it.
    """
    with connect(target) as client:
        code = client.sign_in_code()
    link = f"{client.server.url}/sign-in#{code.code}"
    if open_it and has_browser(os.environ) and launch(link):
        echo(f"Opened {client.server.url}/ in your browser, signed in as {code.name} ({code.role}).")
        return
    notify(f"This link signs you in as {code.name} ({code.role}). It works once, for two minutes:")
    echo(link)


def has_browser(environment: Mapping[str, str]) -> bool:
    """Whether a graphical browser can be started; text browsers do not count."""
    return any(environment.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"))
