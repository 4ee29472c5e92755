"""`consilience federation`, `consilience join` and `consilience key`: learn together, over a relay or without one."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from consilience.cli.options import DATA_KEYS, Json, Set, gather_config, with_settings
from consilience.config.parts import ModelConfig, TrainingConfig
from consilience.config.privacy import PrivacyConfig
from consilience.errors import ConfigurationError

_JOIN_KEYS = (
    DATA_KEYS
    | {"data", "device", "precision", "validation"}
    | set(ModelConfig.keys())
    | set(TrainingConfig.keys()) - {"total_epochs"}
)


_ROBUSTNESS_KEYS = {"aggregation", "clip_norm", "clip_ratio", "weight_cap"}
_FEDERATION_KEYS = DATA_KEYS | {"model", "width", "seed", "learners"} | _ROBUSTNESS_KEYS | set(PrivacyConfig.keys())


@partial(with_settings, only=_FEDERATION_KEYS)
def federation(
    method: Annotated[
        str, typer.Argument(help="the method, NAME or FILE.py:NAME, with :KEY=VALUE; see `consilience methods`")
    ],
    data: Annotated[str, typer.Option(help="a data set as members have it, for shapes and classes")] = "digits",
    name: Annotated[str | None, typer.Option(help="what the federation is called (default: the data's name)")] = None,
    out: Annotated[Path, typer.Option(help="the file to write")] = Path("federation.toml"),
    public: Annotated[
        str | None,
        typer.Option(
            metavar="DATA",
            help="for a method with a public set: the data whose training samples it is (default: those of --data)",
        ),
    ] = None,
    plain_means: Annotated[
        bool,
        typer.Option(
            "--plain-means",
            help="no weight cap and no clip but those given (default: a member counts for at most 3 times your "
            "samples, and norms are at most 3 times the median norm)",
        ),
    ] = False,
    partners: Annotated[
        int,
        typer.Option(
            min=0, help="let members ask for answers of chosen partners only, at least so many; 0: nobody may"
        ),
    ] = 0,
    member: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=KEY",
            help="for a federation without a relay: a member, and its public key from `consilience key`, as text or as "
            "a file (give it once for each member)",
        ),
    ] = None,
    expire: Annotated[
        int,
        typer.Option(min=0, help="rounds for which a member that has vanished still counts (default: 0, without end)"),
    ] = 0,
    set_: Set = None,
    settings: dict[str, Any] | None = None,
) -> None:
    """Write a federation's charter: task, method, and what may be uploaded.

    A relay creates the federation from it. With --member, the members need no relay: each gets a copy.
    """
    from consilience.cli.member import CharterOptions, parse_members
    from consilience.cli.member import federation as write

    config = gather_config(None, set_, {**(settings or {}), "data": data}, method)
    listed = CharterOptions(plain_means, public, parse_members(member or ()), expire, partners)
    written = write(config, name or config.data_name.lower(), out, listed)
    print(written, file=sys.stderr)


@partial(with_settings, only=_JOIN_KEYS)
def join(
    url: Annotated[
        str | None, typer.Argument(help="the relay's address, such as https://relay.example:8443; none with --charter")
    ] = None,
    token: Annotated[
        str | None, typer.Option(envvar="CONSILIENCE_TOKEN", help="the token from your invitation", show_envvar=True)
    ] = None,
    method: Annotated[
        str | None,
        typer.Option(metavar="FILE.py:NAME", help="your copy of the method's file, if it is not a built-in one"),
    ] = None,
    public: Annotated[
        str | None,
        typer.Option(
            metavar="DATA",
            help="for a method with a public set: your copy of the data that it is from (default: the relay's copy)",
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="folder for the model and the state to resume from")] = None,
    wait: Annotated[float, typer.Option(min=0, help="seconds to wait for other members in a round")] = 120.0,
    ca_file: Annotated[str | None, typer.Option(help="a file with the certificates to trust")] = None,
    relay_key: Annotated[
        str | None, typer.Option(help="the relay's public key, from its operator; checked from the first contact")
    ] = None,
    partners: Annotated[
        str | None,
        typer.Option(
            metavar="NUMBERS",
            help="members whose uploads alone means and observations are of, beside yours, such as 1,3-5; the charter "
            "must allow it (default: everybody's)",
        ),
    ] = None,
    charter: Annotated[
        Path | None, typer.Option(help="without a relay: the federation's charter, which lists its members")
    ] = None,
    key: Annotated[Path | None, typer.Option(help="without a relay: your key, from `consilience key`")] = None,
    peers: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ADDRESS",
            help="without a relay: where another member is, such as tls/south.example:7447 (may be given "
            "several times)",
        ),
    ] = None,
    listen: Annotated[
        list[str] | None,
        typer.Option(metavar="ADDRESS", help="without a relay: where to accept connections, such as tls/0.0.0.0:7447"),
    ] = None,
    certificate: Annotated[
        str | None, typer.Option(help="for tls/: your certificate, signed by the authority in --ca-file")
    ] = None,
    certificate_key: Annotated[str | None, typer.Option(help="for tls/: the private key of your certificate")] = None,
    iroh_relay: Annotated[
        list[str] | None,
        typer.Option(metavar="URL", help="for iroh/: a relay server to connect through (default: none)"),
    ] = None,
    json_: Json = False,
    settings: dict[str, Any] | None = None,
) -> None:
    """Train in a federation without writing code; resumes where it was stopped, and saves the model.

    With a relay: its address and your token. Without one: --charter, --key, and --peers or --listen.
    """
    from consilience.cli.member import JoinOptions, RelayAddress
    from consilience.cli.member import join as train
    from consilience.peer.direct.network import PeerNetwork

    own = (tuple(peers or ()), tuple(listen or ()))
    check_one_way(url, token, relay_key, {"--charter": charter, "--key": key, "--peers or --listen": own[0] + own[1]})
    options = JoinOptions(out, method, wait, json_, public, partners)
    where: RelayAddress | PeerNetwork
    if charter is not None and key is not None:
        pems = ca_file, certificate, certificate_key
        where = PeerNetwork(charter, key, *own, *pems, tuple(iroh_relay or ()), max(wait, 1.0))
    else:
        where = RelayAddress(str(url), str(token), ca_file, relay_key)
    train(gather_config(None, None, settings or {}, None), where, options)


def check_one_way(url: str | None, token: str | None, relay_key: str | None, direct: dict[str, Any]) -> None:
    """Refuse a mixture of what a relay needs and what members without one need, and anything that is missing."""
    given = [name for name, value in direct.items() if value]
    if url is not None and given:
        raise ConfigurationError(f"{url} is a relay, and {given[0]} is for members without one; give either")
    if given:
        if relay_key is not None:
            raise ConfigurationError("--relay-key is for a relay; members without one have their keys in the charter")
        if missing := [name for name, value in direct.items() if not value]:
            raise ConfigurationError(f"without a relay, {' and '.join(missing)} is needed too")
    elif url is None:
        raise ConfigurationError(
            "give the relay's address, such as https://relay.example:8443, with --token; or, for a federation without "
            "a relay, --charter, --key, and --peers or --listen"
        )
    elif token is None:
        raise ConfigurationError("give the token from your invitation: --token, or CONSILIENCE_TOKEN")


def key(
    file: Annotated[Path, typer.Argument(help="the file to write, such as north.key; keep it secret")],
    show: Annotated[bool, typer.Option("--show", help="print the public key of a file that is there")] = False,
) -> None:
    """Make a member's key for a federation without a relay, and print its public key, which the charter lists."""
    from consilience.peer.direct.key_file import make_key, read_key

    print(read_key(file)[2] if show else make_key(file))
