"""`trainyard dashboard`: opens the dashboard in a browser, signed in."""

import html
import os
import shutil
import subprocess
import tempfile
import time
import webbrowser
from collections.abc import Callable, Mapping
from pathlib import Path

import click

from trainyard_cli.commands.shared.options import server_options
from trainyard_cli.local.browser_address import dashboard_url
from trainyard_cli.local.connect import connect, notify
from trainyard_cli.local.state import detach
from trainyard_cli.output.text.safe import echo
from trainyard_cli.settings import Target

_CODE_LIFETIME_S = 120
_PREFIX = "trainyard-sign-in-"
_PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="referrer" content="no-referrer">
<meta http-equiv="refresh" content="0; url={link}">
<title>Trainyard</title>
<p><a href="{link}">Open the dashboard</a></p>
"""


@click.command()
@server_options
@click.option("--no-open", is_flag=True, help="Print the sign-in link instead of opening a browser.")
def dashboard(target: Target, no_open: bool) -> None:
    """Open the dashboard in a browser, signed in. Prints the link if there is no browser."""
    show(target, open_it=not no_open)


def show(target: Target, *, open_it: bool, launch: Callable[[str], bool] = webbrowser.open) -> None:
    """Open the dashboard, or print its link if there is no browser or `open_it` is false.

    The link holds a sign-in code that works once, for two minutes. The code follows the `#`, which browsers do not
    send, so no log contains it. A browser gets it by a file: every user of the machine may read the arguments of a
    process.
    """
    with connect(target) as client:
        code = client.sign_in_code()
    address = dashboard_url(client.server)
    link = f"{address}/sign-in#{code.code}"
    who = f"{code.name} ({code.role})"
    if open_it and has_browser(os.environ) and _launch(link, launch):
        echo(f"Opened {address}/ in your browser, signed in as {who}.")
        echo("If it shows no page, `trainyard dashboard --no-open` prints a link for it.")
        return
    notify(f"This link signs you in as {who}. It works once, for two minutes:")
    echo(link)


def has_browser(environment: Mapping[str, str]) -> bool:
    """Whether a graphical browser of this machine can be started; text browsers do not count, nor does one that an
    editor opens on the machine in front of the user, where our file is not."""
    if "VSCODE_IPC_HOOK_CLI" in environment and "BROWSER" in environment:
        return False
    return any(environment.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"))


def _launch(link: str, launch: Callable[[str], bool]) -> bool:
    try:
        page = write_page(link, Path.home())
    except OSError as error:
        notify(f"No page for the browser can be written to {Path.home()}: {error.strerror}.")
        return False
    _remove_later(page)
    return launch(page.as_uri())


def write_page(link: str, home: Path) -> Path:
    """Write a page that leads to the link, in a directory of its own, readable only by this user.

    It is under a visible name in the home directory: sandboxed browsers see neither hidden directories nor /tmp.
    """
    _remove_old(home)
    directory = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=home))
    page = directory / "open.html"
    page.touch(0o600)
    page.write_text(_PAGE.format(link=html.escape(link)), encoding="utf-8")
    return page


def _remove_later(page: Path) -> None:
    """Have the page removed when its code has expired."""
    script = f'sleep {_CODE_LIFETIME_S}; rm -f -- "$1"; rmdir -- "$2"'
    remover = subprocess.Popen(
        ["sh", "-c", script, "sh", str(page), str(page.parent)],
        cwd="/",
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    detach(remover)


def _remove_old(home: Path) -> None:
    """Remove pages that were left where their remover was killed."""
    expired = time.time() - _CODE_LIFETIME_S
    for directory in home.glob(f"{_PREFIX}*"):
        if not directory.is_symlink() and directory.lstat().st_mtime < expired:
            shutil.rmtree(directory, ignore_errors=True)
