"""`consilience federation` and `consilience join`: learn together over a relay."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from consilience.cli.options import DATA_KEYS, Json, Set, gather_config, with_settings
from consilience.config.parts import ModelConfig, TrainingConfig
from consilience.config.privacy import PrivacyConfig

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
    set_: Set = None,
    settings: dict[str, Any] | None = None,
) -> None:
    """Write a federation's charter: task, method, and what may be uploaded. A relay creates the federation from it."""
    from consilience.cli.member import federation as write

    config = gather_config(None, set_, {**(settings or {}), "data": data}, method)
    written = write(
        config, name or config.data_name.lower(), out, plain_means=plain_means, public=public, partners=partners
    )
    print(written, file=sys.stderr)


@partial(with_settings, only=_JOIN_KEYS)
def join(
    url: Annotated[str, typer.Argument(help="the relay's address, such as https://relay.example:8443")],
    token: Annotated[
        str, typer.Option(envvar="CONSILIENCE_TOKEN", help="the token from your invitation", show_envvar=True)
    ],
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
    json_: Json = False,
    settings: dict[str, Any] | None = None,
) -> None:
    """Train in a federation without writing code; resumes where it was stopped, and saves the model."""
    from consilience.cli.member import JoinOptions
    from consilience.cli.member import join as train

    options = JoinOptions(out, method, wait, ca_file, json_, relay_key, public, partners)
    train(gather_config(None, None, settings or {}, None), url, token, options)
