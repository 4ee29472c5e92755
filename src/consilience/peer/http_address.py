"""Where a relay is and how it is reached: a checked URL, the proxy of the environment, the certificates to trust."""

from __future__ import annotations

import importlib.util
import ipaddress
import ssl
from urllib.parse import unquote, urlsplit, urlunsplit
from urllib.request import getproxies, proxy_bypass

import httpcore

from consilience.errors import ConfigurationError


def check_url(url: str) -> str:
    """The URL without a slash at its end, its host in ASCII; refused where it is not a relay's, or not encrypted."""
    try:
        parts = urlsplit(url)
        host, port = (parts.hostname or "").encode("idna").decode(), parts.port
        possible = parts.scheme in ("http", "https") and bool(host) and port != 0
    except (ValueError, UnicodeError):
        possible = False
    if possible:
        possible = (parts.path + host).isascii() and url.isprintable() and " " not in url
    if not possible or parts.username or parts.query or parts.fragment:
        raise ConfigurationError(f"{url!r} is not the address of a relay; write it like https://relay.example:8443")
    if parts.scheme == "http" and not is_loopback(url):
        raise ConfigurationError(
            f"{url} is not encrypted, and your token would travel for all to read; use https, or a relay on this "
            f"machine"
        )
    netloc = _bracketed(host) + (f":{port}" if port else "")
    return urlunsplit((parts.scheme, netloc, parts.path, "", "")).rstrip("/")


def is_loopback(url: str) -> bool:
    """Whether the URL is of this machine."""
    host = urlsplit(url).hostname or ""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def host_header(url: str) -> str:
    """The Host header of requests to a checked URL."""
    return urlsplit(url).netloc


def proxy_for(url: str) -> httpcore.Proxy | None:
    """The proxy that the environment names for the URL (HTTPS_PROXY, ALL_PROXY, NO_PROXY), as curl reads it."""
    parts, proxies = urlsplit(url), getproxies()
    named = proxies.get(parts.scheme) or proxies.get("all")
    if not named or proxy_bypass(parts.netloc):
        return None
    proxy = urlsplit(named if "://" in named else f"http://{named}")
    if proxy.scheme not in ("http", "https", "socks5", "socks5h") or not proxy.hostname:
        raise ConfigurationError(f"proxy {named!r} of the environment cannot be used; known: http, https, socks5")
    if proxy.scheme.startswith("socks5") and importlib.util.find_spec("socksio") is None:
        raise ConfigurationError(f"proxy {named!r} of the environment needs a package: pip install socksio")
    auth = (unquote(proxy.username), unquote(proxy.password or "")) if proxy.username else None
    netloc = _bracketed(proxy.hostname) + (f":{proxy.port}" if proxy.port else "")
    return httpcore.Proxy(f"{proxy.scheme}://{netloc}", auth)


def trusted_certificates(ca_file: str | None) -> ssl.SSLContext:
    """The TLS settings of a client that trusts the system's authorities, or those of a PEM file."""
    try:
        return ssl.create_default_context(cafile=ca_file)
    except (OSError, ssl.SSLError) as error:
        raise ConfigurationError(f"{ca_file}: no certificates can be read there: {error}") from error


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
