"""Certificates of a relay: renewed while it serves, kept if the new one cannot be used, and warned about in time."""

from __future__ import annotations

import logging
import socket
import ssl
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import trustme
from starlette.applications import Starlette

from consilience.errors import ConfigurationError
from consilience.relay.certificate import Certificate, describe_expiry
from consilience.relay.certificate_dates import expiry_of, expiry_of_chain
from consilience.relay.server import ServerSettings, bind_server
from tests.relay_tools import wait_until

DAY = 86400
AUTHORITY = trustme.CA()


def write(folder: Path, days: float, part: str = "both") -> tuple[str, str]:
    """A certificate that expires in so many days, with its key; or only one of the two files."""
    leaf = AUTHORITY.issue_cert("127.0.0.1", not_after=datetime.now(UTC) + timedelta(days=days))
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    if part in ("both", "certificate"):
        certificate.write_bytes(b"".join(each.bytes() for each in leaf.cert_chain_pems))
    if part in ("both", "key"):
        key.write_bytes(leaf.private_key_pem.bytes())
    return str(certificate), str(key)


def served_days(port: int) -> float:
    """For how many days the certificate is valid that a client is shown."""
    context = ssl.create_default_context()
    AUTHORITY.configure_trust(context)
    with (
        socket.create_connection(("127.0.0.1", port), timeout=10) as connection,
        context.wrap_socket(connection, server_hostname="127.0.0.1") as secure,
    ):
        der = secure.getpeercert(binary_form=True)
    assert der is not None
    return (expiry_of(der) - time.time()) / DAY


@pytest.mark.parametrize("days", [1, 300, 9000, 20000])  # dates before and after 2050 are encoded differently
def test_expiry_is_that_of_the_certificate(tmp_path: Path, days: float) -> None:
    certificate, _ = write(tmp_path, days)
    assert abs(expiry_of_chain(certificate) - time.time() - days * DAY) < 60


def test_expiry_is_that_of_the_first_of_the_chain_to_expire(tmp_path: Path) -> None:
    certificate, _ = write(tmp_path, 300)
    longer = Path(certificate).read_bytes()
    write(tmp_path, 3)
    both = tmp_path / "both.pem"
    both.write_bytes(longer + Path(certificate).read_bytes())
    assert abs(expiry_of_chain(str(both)) - time.time() - 3 * DAY) < 60


def test_file_that_is_no_certificate_is_named(tmp_path: Path) -> None:
    file = tmp_path / "x.pem"
    for content in ("", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"):
        file.write_text(content)
        with pytest.raises(ConfigurationError, match=r"x\.pem"):
            expiry_of_chain(str(file))


def test_renewed_certificate_is_used_and_a_wrong_one_is_not(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tls, ready = write(tmp_path, 10), threading.Event()
    settings = ServerSettings(port=0, tls=tls)
    server = bind_server(Starlette(), settings, on_ready=lambda url: ready.set())
    thread = threading.Thread(target=server.run)
    port = int(server.url.rsplit(":", 1)[1])
    with caplog.at_level(logging.INFO, "consilience.relay"):
        thread.start()
        try:
            assert ready.wait(10)
            assert round(served_days(port)) == 10
            write(tmp_path, 20)
            wait_until(lambda: round(served_days(port)) == 20)
            write(tmp_path, 40, "certificate")  # whose key comes later
            wait_until(lambda: "is not the key of the certificate" in caplog.text)
            assert round(served_days(port)) == 20
            write(tmp_path, 50)
            wait_until(lambda: round(served_days(port)) == 50)
            Path(tls[0]).unlink()
            wait_until(lambda: "cannot read" in caplog.text)
            assert round(served_days(port)) == 50
            write(tmp_path, 60, "both")
            wait_until(lambda: round(served_days(port)) == 60)
        finally:
            server.should_exit = True
            thread.join(12)
    assert not thread.is_alive()
    assert caplog.text.count("the new certificate is not used, the old one still is") == 2
    assert caplog.text.count("the certificate was loaded again") == 3


def test_warnings_come_30_7_and_1_days_before_and_once_each(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    ahead = 0.0
    certificate = Certificate(*write(tmp_path, 100), clock=lambda: time.time() + ahead * DAY)
    said = {}
    with caplog.at_level(logging.INFO, "consilience.relay"):
        for ahead in (0, 60, 69, 71, 72, 90, 93.5, 98, 99.5, 100.5, 101):
            before = len(caplog.records)
            certificate.check()
            said[ahead] = [record.getMessage() for record in caplog.records[before:]]
        assert [days for days, messages in said.items() if messages] == [71, 93.5, 99.5, 100.5]
        assert "in 29.0 days; renew it" in said[71][0]
        assert "members refuse to connect until it is renewed" in said[100.5][0]
        write(tmp_path, 105)
        certificate.check()
        assert caplog.records[-1].getMessage().endswith("in 4.0 days; renew it")


def test_requested_reload_happens_without_a_change(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    certificate = Certificate(*write(tmp_path, 100))
    with caplog.at_level(logging.INFO, "consilience.relay"):
        certificate.check()
        assert not caplog.records
        certificate.request_reload()
        certificate.check()
        certificate.check()
    assert [record.getMessage() for record in caplog.records] == ["the certificate was loaded again"]


def test_expiry_in_words() -> None:
    assert describe_expiry(1e9 + 2 * DAY, 1e9) == (
        "the certificate expires at 2001-09-11T01:46:40+00:00, in 2.0 days; renew it"
    )
