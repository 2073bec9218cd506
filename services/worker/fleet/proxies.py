"""The way out: which proxy a URL is reached through, as the usual variables of the environment say.

`HTTPS_PROXY`, `HTTP_PROXY` and `ALL_PROXY` name one, `NO_PROXY` the hosts that need none: names (with what is below
them), addresses, networks (`10.0.0.0/8`), any with a port, or `*`. This machine is never reached through a proxy.
"""

import ipaddress
from collections.abc import Mapping
from urllib.parse import urlsplit

from services.worker.fleet.errors import OptionUnusable


def proxy_for(url: str, environment: Mapping[str, str]) -> str | None:
    """The proxy for this URL; None where it is reached directly. OptionUnusable for one that can't be spoken to."""
    parts = urlsplit(url)
    host = (parts.hostname or "").rstrip(".")
    if is_loopback(host) or _excepted(host, parts.port or _usual_port(parts.scheme), _value(environment, "no_proxy")):
        return None
    name = f"{parts.scheme}_proxy"
    proxy = _value(environment, name)
    if not proxy:
        name = "all_proxy"
        proxy = _value(environment, name)
    if not proxy:
        return None
    proxy = proxy if "://" in proxy else f"http://{proxy}"
    if urlsplit(proxy).scheme not in ("http", "https") or not urlsplit(proxy).hostname:
        raise OptionUnusable(f"{name.upper()} names no proxy that can be used; give http://HOST:PORT or https://….")
    return proxy


def is_loopback(host: str) -> bool:
    """Whether a host is this machine."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    address = _address(host)
    return address is not None and address.is_loopback


def _value(environment: Mapping[str, str], name: str) -> str:
    return (environment.get(name) or environment.get(name.upper()) or "").strip()


def _usual_port(scheme: str) -> int:
    return 443 if scheme == "https" else 80


def _excepted(host: str, port: int, exceptions: str) -> bool:
    return any(_covers(each.strip().lower(), host.lower(), port) for each in exceptions.split(",") if each.strip())


def _covers(exception: str, host: str, port: int) -> bool:
    if exception == "*":
        return True
    address = _address(host)
    if address is not None:
        try:
            if address in ipaddress.ip_network(exception.strip("[]"), strict=False):
                return True
        except ValueError:
            pass
    name, colon, wanted = exception.rpartition(":")
    if colon and wanted.isdigit() and ("]" in name or ":" not in name):
        if int(wanted) != port:
            return False
        exception = name.strip("[]")
    exception = exception.removeprefix("*").strip(".")
    return bool(exception) and (host == exception or host.endswith(f".{exception}"))


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None
