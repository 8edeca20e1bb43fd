"""A command that ends an attachment from inside of its container, where the agent does not see its processes.

It finds them by their variable. What has cleared its environment goes on until its replica ends.
"""

from typing import Final

from trainyard_agent.host.process_tags import ATTACHMENT

_END: Final = """
signal() {
    found=1
    for file in /proc/[0-9]*/environ; do
        if grep -q "$mark" "$file" 2>/dev/null; then
            pid=${file#/proc/}
            kill "-$1" "${pid%/environ}" 2>/dev/null && found=0
        fi
    done
    return $found
}
mark=$1 left=$2
signal HUP || exit 0
signal CONT
while [ "$left" -gt 0 ]; do
    sleep 1
    signal 0 || exit 0
    left=$((left - 1))
done
left=100
while [ "$left" -gt 0 ] && signal KILL; do
    left=$((left - 1))
done
"""
"""A script for any sh, with grep and kill."""


def end_command(attachment: str, grace_s: int) -> tuple[str, ...]:
    """The command: SIGHUP, and SIGKILL after the grace."""
    return ("/bin/sh", "-c", _END, "sh", f"{ATTACHMENT}={attachment}", str(grace_s))
