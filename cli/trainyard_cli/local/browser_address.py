"""Address of a server for browsers."""

from urllib.parse import urlsplit

from trainyard_cli.settings import Server
from trainyard_protocol.net import loopback

DASHBOARD_HOST = "trainyard.localhost"
"""A name of loopback that browsers know by themselves. Services on other ports, under localhost and 127.0.0.1, get none
of its cookies."""

_HTTP_PORT = 80


def dashboard_url(server: Server) -> str:
    """The address of a server for browsers. On loopback it is a host name of its own where one user holds both
    addresses that the name has, else the address that the server is known to have: a browser sends a sign-in code and
    cookies to no other."""
    address = urlsplit(server.url)
    if address.scheme != "http" or not server.is_loopback:
        return server.url
    port = address.port or _HTTP_PORT
    if loopback.is_held_by_one_user(port):
        host = DASHBOARD_HOST
    elif address.hostname == "localhost":
        host = loopback.IPV4
    else:
        return server.url
    return address._replace(netloc=f"{host}:{port}" if address.port else host).geturl()
