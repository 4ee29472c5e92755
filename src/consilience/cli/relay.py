"""`consilience relay`: create a federation, invite, revoke, serve, check, back up and restore. It needs no torch."""

from __future__ import annotations

import json
import shlex
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from consilience.cli.relay_audit import audit, key
from consilience.cli.relay_operators import app as operators
from consilience.errors import ConfigurationError

app = typer.Typer(no_args_is_help=True, help="Run a relay: create federations, invite members, serve.")
app.add_typer(operators, name="operator")
app.command()(audit)
app.command()(key)

Place = Annotated[Path, typer.Option("--store", help="the database file of the relay")]
Federation = Annotated[str | None, typer.Option(help="the federation, if the store has several")]
Days = Annotated[float | None, typer.Option(help="for how many days the token is valid; by default for ever")]
_STORE = Path("relay.db")


class LogForm(StrEnum):
    """How a relay writes its log."""

    TEXT = "text"
    JSON = "json"


@app.command()
def create(
    file: Annotated[Path, typer.Argument(help="a federation's charter, from `consilience federation`")],
    store: Place = _STORE,
) -> None:
    """Create a federation from its charter, and the store if there is none."""
    from consilience.relay import admin

    charter = admin.create(store, file)
    where = "" if store == _STORE else f" --store {shlex.quote(str(store))}"
    print(f"{charter.name} is created in {store}; invite its members with: consilience relay invite MEMBER{where}")
    print(f"its key, which members may check with --relay-key: {charter.relay_key}")


@app.command()
def invite(
    member: Annotated[str, typer.Argument(help="a name for the member, such as ward-7")],
    federation: Federation = None,
    days: Days = None,
    store: Place = _STORE,
) -> None:
    """Make a token for a new member, or for a revoked one. It is shown only once; the store has only its hash."""
    from consilience.relay import admin

    token = admin.invite(store, member, federation, days)
    print(f"{member}'s token, shown only once{_valid(days)}:", file=sys.stderr)
    print(token)


@app.command()
def rotate(
    member: Annotated[str, typer.Argument(help="the member's name")],
    federation: Federation = None,
    grace: Annotated[float, typer.Option(help="hours for which the old token is still accepted")] = 0.0,
    days: Days = None,
    store: Place = _STORE,
) -> None:
    """Make a new token for a member. The old one is refused at once, or after --grace hours."""
    from consilience.relay.rotate import rotate as rotate_token

    token = rotate_token(store, member, federation, grace=grace, days=days)
    old = f"the old one is accepted for {grace:g} more hours" if grace else "the old one is refused from now on"
    print(f"{member}'s new token, shown only once{_valid(days)}; {old}:", file=sys.stderr)
    print(token)


def _valid(days: float | None) -> str:
    return "" if days is None else f", valid for {days:g} days"


@app.command()
def revoke(
    member: Annotated[str, typer.Argument(help="the member's name")],
    federation: Federation = None,
    store: Place = _STORE,
) -> None:
    """Revoke a member's token at once, and remove its contributions from means and pools."""
    from consilience.relay import admin

    admin.revoke(store, member, federation)
    print(f"{member}'s token has been revoked", file=sys.stderr)


@app.command()
def status(
    store: Place = _STORE,
    json_: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
    tls_cert: Annotated[Path | None, typer.Option(help="the relay's certificate, to see when it expires")] = None,
) -> None:
    """Show federations, their members, and the last round of each member and when it was seen last."""
    from consilience.relay import admin

    found = admin.status(store)
    if tls_cert is not None:
        _show_expiry(tls_cert)
    if json_:
        print(json.dumps(found))
        return
    if not found:
        print(f"{store} has no federation yet", file=sys.stderr)
    for each in found:
        versions = ", ".join(f"{name} {version}" for name, version in each["versions"].items())
        moved = f"; versions: {versions}" if versions else ""
        print(f"{each['federation']} ({each['method']}): {each['uploads']} uploads, {each['bytes']:,} bytes{moved}")
        for member in each["members"]:
            seen = f"seen {member['seen']}" if member["seen"] else "never seen"
            expires = f", token until {member['expires']}" if member["expires"] else ""
            who = f"  {member['number']:>4}  {member['name']:<24} {member['state']:<8} round {member['round']}"
            print(f"{who:<55} {seen}{expires}")


def _show_expiry(certificate: Path) -> None:
    """Print when a certificate expires, beside the status."""
    import time

    from consilience.relay.certificate import describe_expiry
    from consilience.relay.certificate_dates import expiry_of_chain

    print(f"{certificate}: {describe_expiry(expiry_of_chain(str(certificate)), time.time())}", file=sys.stderr)


@app.command()
def verify(store: Place = _STORE, json_: Annotated[bool, typer.Option("--json", help="print JSON")] = False) -> None:
    """Check every record of a store against its checksum; changes nothing, also while a relay serves the store."""
    from consilience.relay import admin

    found = admin.verify(store)
    if json_:
        print(json.dumps(found))
    else:
        for name, count in found["records"].items():
            print(f"{name:<16}{count:>10,}")
        for line in found["damage"]:
            print(f"  {line}")
        print(f"{store}: " + (f"{len(found['damage'])} damaged" if found["damage"] else "sound"))
    if found["damage"]:
        raise typer.Exit(1)


@app.command()
def backup(
    file: Annotated[Path, typer.Argument(help="the file to write; it must be new")], store: Place = _STORE
) -> None:
    """Copy the store into one file, all of it from one moment, also while a relay serves it."""
    from consilience.relay.restore import back_up

    size = back_up(store, file)
    print(f"{file}: a sound copy of {store}, {size:,} bytes")


@app.command()
def restore(
    file: Annotated[Path, typer.Argument(help="a backup")],
    store: Place = _STORE,
    revoked: Annotated[
        str | None, typer.Option(help="tokens revoked since the backup: `revoke` them again, or `keep` accepting them")
    ] = None,
) -> None:
    """Continue from a backup. The store that it replaces is kept; members download the common values again."""
    from consilience.relay.restore import restore as restore_backup

    if revoked not in (None, "revoke", "keep"):
        raise ConfigurationError(f"--revoked is {revoked!r}; choose revoke or keep")
    done = restore_backup(file, store, revoked)
    kept = f"; the store that it replaced is {done.replaced}" if done.replaced else ""
    again = f"; revoked again: {', '.join(done.revoked)}" if done.revoked else ""
    print(f"{store}: restored from {file}, epoch {done.epoch}{kept}{again}")
    if done.unknown:
        names = ", ".join(done.unknown)
        print(f"invited after the backup was made, and unknown to it: {names}. Invite them again", file=sys.stderr)


@app.command()
def rollback(
    federation: Annotated[str, typer.Argument(help="the federation")],
    to: Annotated[int | None, typer.Option(help="the version to go back to; without it, lists those stored")] = None,
    channel: Annotated[str | None, typer.Option(help="the moving mean, if the federation has several")] = None,
    store: Place = _STORE,
) -> None:
    """Go back to older common values, after a bad upload has ruined them. Stop the relay first."""
    from consilience.relay.rollback import roll_back, stored_versions

    if to is None:
        name, versions = stored_versions(store, federation, channel)
        print(f"{name}: versions {', '.join(map(str, versions))} are stored")
        return
    done = roll_back(store, federation, to, channel)
    print(f"{done.channel}: back from version {done.before} to {to}, which goes on as version {done.version}")


@app.command()
def serve(
    store: Place = _STORE,
    host: Annotated[str, typer.Option(help="the address to listen on")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="the port; 0 takes a free one")] = 8443,
    tls_cert: Annotated[
        Path | None, typer.Option(help="the certificate, PEM, with the chain up to its authority")
    ] = None,
    tls_key: Annotated[Path | None, typer.Option(help="its private key, PEM")] = None,
    insecure: Annotated[
        bool,
        typer.Option("--insecure", help="serve beyond loopback without TLS, behind a proxy that has TLS"),
    ] = False,
    rate: Annotated[float, typer.Option(min=0, help="requests per second of a member; 0: no limit")] = 20.0,
    burst: Annotated[int, typer.Option(min=1, help="requests that a member may send in a burst")] = 100,
    head: Annotated[float, typer.Option(min=0.1, help="seconds in which a request's head must arrive")] = 10.0,
    idle: Annotated[float, typer.Option(min=0.1, help="seconds for which a request's body may pause")] = 15.0,
    body: Annotated[
        float, typer.Option(min=0.1, help="seconds a request's body may take, plus one for every KiB")
    ] = 30.0,
    connections: Annotated[int, typer.Option(min=1, help="the most connections at once")] = 1000,
    log: Annotated[LogForm, typer.Option(help="lines of text, or one JSON object per line")] = LogForm.TEXT,
    member_connections: Annotated[int, typer.Option(min=0, help="the most of one member; 0: no limit")] = 32,
    address_connections: Annotated[int, typer.Option(min=0, help="the most of one address; 0: no limit")] = 256,
    member_mib: Annotated[
        int, typer.Option(min=0, help="MiB of a member's uploads and answers under way; 0: no limit")
    ] = 32,
    address_mib: Annotated[
        int, typer.Option(min=0, help="MiB of an address's uploads and answers under way; 0: no limit")
    ] = 256,
    failed_logins: Annotated[
        int, typer.Option(min=0, help="wrong tokens per minute and address before answers are delayed; 0: no limit")
    ] = 20,
    cache_mib: Annotated[int, typer.Option(min=0, help="MiB of answers to keep for the next who asks")] = 64,
    proxy: Annotated[
        list[str] | None, typer.Option(help="a reverse proxy's address, whose X-Forwarded-For header is believed")
    ] = None,
) -> None:
    """Serve the federations of the store until Ctrl-C or SIGTERM; every acknowledged upload is on disk."""
    from consilience.relay.addresses import check_proxies
    from consilience.relay.app import Limits, Relay
    from consilience.relay.logs import configure_logging
    from consilience.relay.server import ServerSettings, run_server
    from consilience.relay.store import Store, lock_store
    from consilience.relay.timeouts import Timeouts

    if (tls_cert is None) != (tls_key is None):
        raise ConfigurationError("--tls-cert and --tls-key go together; give both")
    configure_logging(log.value)
    Store(store).close()  # refuses a file that is not a store, before the server listens
    lock_store(store).close()  # and a store that another relay serves
    limits = Limits(
        rate=rate,
        burst=burst,
        member_connections=member_connections,
        address_connections=address_connections,
        member_bytes=member_mib * 2**20,
        address_bytes=address_mib * 2**20,
        failed_logins=failed_logins,
        cache=cache_mib * 2**20,
        proxies=check_proxies(proxy or ()),
    )
    settings = ServerSettings(
        host=host,
        port=port,
        timeouts=Timeouts(head=head, idle=idle, body=body),
        tls=(str(tls_cert), str(tls_key)) if tls_cert and tls_key else None,
        insecure=insecure,
        connections=connections,
        address_connections=address_connections,
        proxies=limits.proxies,
    )
    run_server(Relay(store, limits).app(), settings, on_ready=lambda url: print(f"relay: {url}", flush=True))
