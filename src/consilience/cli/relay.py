"""`consilience relay serve | create | invite | revoke | status`: none of it needs torch."""

from __future__ import annotations

import json
import logging
import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from consilience.errors import ConfigurationError

app = typer.Typer(no_args_is_help=True, help="Run a relay: create federations, invite members, serve.")

Place = Annotated[Path, typer.Option("--store", help="the database file of the relay")]
Federation = Annotated[str | None, typer.Option(help="the federation, if the store has several")]
_STORE = Path("relay.db")


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


@app.command()
def invite(
    member: Annotated[str, typer.Argument(help="a name for the member, such as ward-7")],
    federation: Federation = None,
    store: Place = _STORE,
) -> None:
    """Make a token for a new member. It is shown only once; the store has only its hash."""
    from consilience.relay import admin

    token = admin.invite(store, member, federation)
    print(f"{member}'s token, shown only once:", file=sys.stderr)
    print(token)


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
def status(store: Place = _STORE, json_: Annotated[bool, typer.Option("--json", help="print JSON")] = False) -> None:
    """Show federations, their members and the last round of each member."""
    from consilience.relay import admin

    found = admin.status(store)
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
            print(f"  {member['number']:>4}  {member['name']:<24} {member['state']:<8} round {member['round']}")


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
) -> None:
    """Serve the federations of the store until Ctrl-C or SIGTERM; every acknowledged upload is on disk."""
    from consilience.relay.app import Limits, Relay
    from consilience.relay.server import ServerSettings, run_server
    from consilience.relay.store import Store, lock_store
    from consilience.relay.timeouts import Timeouts

    if (tls_cert is None) != (tls_key is None):
        raise ConfigurationError("--tls-cert and --tls-key go together; give both")
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S", stream=sys.stderr)
    Store(store).close()  # refuses a file that is not a store, before the server listens
    lock_store(store).close()  # and a store that another relay serves
    settings = ServerSettings(
        host=host,
        port=port,
        timeouts=Timeouts(head=head, idle=idle, body=body),
        tls=(str(tls_cert), str(tls_key)) if tls_cert and tls_key else None,
        insecure=insecure,
        connections=connections,
    )
    run_server(
        Relay(store, Limits(rate, burst)).app(), settings, on_ready=lambda url: print(f"relay: {url}", flush=True)
    )
