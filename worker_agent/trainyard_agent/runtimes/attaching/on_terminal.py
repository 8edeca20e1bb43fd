"""Makes stdin the terminal that controls this session, and becomes the command:
`python -I -S on_terminal.py COMMAND ARGUMENT...`."""

import fcntl
import os
import sys
import termios

if __name__ == "__main__":
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    os.execvp(sys.argv[1], sys.argv[1:])  # noqa: S606 - a list, and no shell
