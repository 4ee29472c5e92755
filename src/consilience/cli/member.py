"""`consilience federation` and `consilience join`: write a charter, and train in a federation."""

from __future__ import annotations

import json
import logging
import math
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

from consilience.cli.member_data import load_member_data
from consilience.config.config import Config, make_config
from consilience.config.groups import parse_numbers
from consilience.data import Dataset, Scaling
from consilience.errors import CheckpointError, ConfigurationError
from consilience.kinds import ACCURACY, Metric
from consilience.methods import build_method
from consilience.peer.charter_means import MeanRules
from consilience.peer.connection import FederationConnection, connect_to_relay
from consilience.peer.create_charter import TaskShape, create_charter, with_members, write_charter
from consilience.peer.direct.connection import connect_to_peers
from consilience.peer.direct.key_file import SECRET
from consilience.peer.direct.network import PeerNetwork
from consilience.peer.member_method import member_method
from consilience.peer.public_set import find_public_set, public_inputs
from consilience.peer.trainer import FederatedTrainer, RoundResult
from consilience.privacy.plan import MECHANISMS
from consilience.simulation.records.run_folder import RunFolder
from consilience.simulation.setup.inputs import load_data, models_of, with_absolute_paths, with_model
from consilience.user_code import absolute_name
from consilience.wire.members import is_public_key
from consilience.wire.privacy import PrivacySettings
from consilience.wire.rules import Rules

log = logging.getLogger("consilience")

_MODEL = "model"
_ANY_MEMBER = 2**31  # the relay knows how many members there are


@dataclass(frozen=True)
class CharterOptions:
    """What else a charter says.

    plain_means: means have no weight cap and no clip but those in the configuration. public: the data whose training
    samples are the public set, where the method has one; by default those of the configuration. members: names and
    public keys, of a federation without a relay. expire: rounds for which a member that has vanished still counts.
    partners: the fewest partners that members may ask for answers of; 0 where none may.
    """

    plain_means: bool = False
    public: str | None = None
    members: tuple[tuple[str, str], ...] = ()
    expire: int = 0
    partners: int = 0


def parse_members(texts: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """Names and public keys from NAME=KEY, where KEY is the key itself or a file with it."""
    found = []
    for text in texts:
        name, _, key = text.partition("=")
        if SECRET in text:
            raise ConfigurationError("--member has a secret key; give the public key that `consilience key` prints")
        if not name or not key:
            raise ConfigurationError(f"--member {text!r}: write NAME=KEY, such as north=ed25519:... or north=north.pub")
        found.append((name, key if key.startswith("ed25519:") else _read_public_key(text, key)))
    return tuple(found)


def _read_public_key(text: str, file: str) -> str:
    """The public key in a file; what else is in it is not shown, as it may be secret."""
    try:
        key = Path(file).read_text(encoding="ascii").strip()
    except OSError as error:
        raise ConfigurationError(f"--member {text}: {file} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError:
        key = ""
    if key.startswith(SECRET):
        raise ConfigurationError(
            f"--member {text}: {file} is a secret key; give the public key that `consilience key --show {file}` prints"
        )
    if not is_public_key(key):
        raise ConfigurationError(f"--member {text}: {file} has no public key; one is ed25519: with 44 characters")
    return key


def federation(config: Config, name: str, out: Path, options: CharterOptions) -> str:
    """Write a federation's charter for the configuration's data, models and method, and say what to do next."""
    data = load_data(config, progress=True)
    config = with_model(config, data)
    method = config.method.model_dump()
    models = list(dict.fromkeys(models_of(None, config)))
    counts = tuple(data.group_counts(data.targets).tolist())
    known = (data.scaling, data.labels, data.columns, counts, config.federation.learner_count or 0)
    shared = _public_samples(config, method, data, options.public)
    predicted, fields = data.target, data.fields
    task = TaskShape(
        data.shape, data.classes, config.model.width, *known, public=shared, target=predicted, fields=fields
    )
    means = MeanRules(config.federation.robustness, defaults=not options.plain_means)
    rules = Rules(expire=options.expire, partners=options.partners)
    more: dict[str, Any] = {"means": means, "rules": rules, "privacy": _privacy_of(config)}
    charter, starts = create_charter(name, method, task, models, seed=config.federation.seed, **more)
    if options.members:
        charter = with_members(charter, options.members)
    written = " and ".join(str(path) for path in write_charter(out, charter, starts))
    if charter.members:
        return (
            f"{written} written, fingerprint {charter.fingerprint[:16]}; give each of its {len(charter.members)} "
            f"members a copy, which join with: consilience join --charter {out} --key FILE --peers ADDRESS ..."
        )
    return f"{written} written; create the federation at the relay with: consilience relay create {out}"


def _privacy_of(config: Config) -> PrivacySettings | None:
    """How members make their uploads private; None where they do not."""
    asked = config.privacy
    if asked.private == "none":
        return None
    if asked.uploads is None:
        raise ConfigurationError(
            f"private is {asked.private!r}, and members may go on for any number of rounds; say for how many uploads "
            f"of a member the budget is, such as --private-uploads 50"
        )
    assert asked.epsilon is not None
    return PrivacySettings(
        private=asked.private, epsilon=asked.epsilon, delta=asked.delta, clip=asked.clip, uploads=asked.uploads
    )


def _public_samples(config: Config, method: dict[str, Any], data: Dataset, public: str | None) -> np.ndarray | None:
    """The samples of the public set, scaled as the data is; None where the method has none."""
    settings = dict(method)
    if build_method(absolute_name(settings.pop("name")), settings).host is None:
        if public is not None:
            raise ConfigurationError(f"method {method['name']!r} has no public set; leave --public out")
        return None
    return public_inputs(data) if public is None else _load_public(config, public, data.scaling)


def _load_public(config: Config, public: str, scaling: Scaling) -> np.ndarray:
    """The training samples of other data, read with the same options."""
    other = config.replace(data=public, train=None, test=None, test_data=None)
    return public_inputs(load_data(other, progress=True, scaling=scaling))


@dataclass(frozen=True)
class RelayAddress:
    """A relay, and what a member knows of it."""

    url: str
    token: str
    ca_file: str | None = None
    relay_key: str | None = None


@dataclass(frozen=True)
class JoinOptions:
    """How a member takes part; method: its copy of the method's file, if the federation has one from a file.

    public: the data whose training samples are the public set; by default it comes from the relay. partners: numbers
    of members whose uploads alone means and observations are of, such as 1,3-5; by default everybody's.
    """

    folder: Path | None = None
    method: str | None = None
    wait: float = 120.0
    as_json: bool = False
    public: str | None = None
    partners: str | None = None


def join(config: Config, where: RelayAddress | PeerNetwork, options: JoinOptions) -> None:
    """Train in a federation until all rounds are finished or the user stops it, and save the model."""
    connection = _connect(where, options)
    try:
        if options.partners is not None:
            connection.use_partners(parse_numbers("--partners", options.partners, _ANY_MEMBER))
        stopped = _train(connection, config, options)
    finally:
        connection.disconnect()
    if stopped:
        raise SystemExit(130)


def _connect(where: RelayAddress | PeerNetwork, options: JoinOptions) -> FederationConnection:
    if isinstance(where, RelayAddress):
        known = {"ca_file": where.ca_file, "relay_key": where.relay_key}
        return connect_to_relay(where.url, where.token, options.folder, 5.0, **known)
    if not options.as_json:
        charter = where.read_charter()
        names = ", ".join(member.name for member in charter.members)
        _say(f"{charter.name}: members {names}; looking for the others, at most {where.wait:g} s at a first start")
    return connect_to_peers(where, options.folder)


def _train(connection: FederationConnection, config: Config, options: JoinOptions) -> bool:
    """Play the rounds that are left; return whether the user stopped it."""
    built = member_method(connection.charter, options.method)
    method = {**connection.charter.method, "name": built.source}
    settings = config.settings()
    config = make_config({**settings, "method": method, "learners": 1, "seed": connection.charter.seed})
    if connection.charter.target is not None and config.data.kind == "auto":
        config = config.replace(kind=connection.charter.kind)
    data = load_member_data(connection.charter, config)
    config = with_absolute_paths(with_model(config, data))
    say = _silent if options.as_json else _say
    given = None if options.public is None else _load_public(config, options.public, data.scaling)
    shared = connection.charter.public_set
    hosts = shared is not None and shared.host == connection.number and given is None
    own = public_inputs(data) if hosts else data.inputs
    public = find_public_set(connection, own, given, options.wait, say)
    trainer = FederatedTrainer(connection, config, built, data, models_of(None, config)[0], options.wait, public)
    place = _open_folder(connection.folder, config)
    resumed = trainer.resume(connection.folder)
    federation_of = f"{connection.charter.name} ({config.method.label})"
    say(f"{connection.name} in {federation_of}, {len(data.targets)} samples; saved in {connection.folder}")
    if trainer.budget.plan is not None:
        say(_describe_privacy(trainer))
    _remove_lines_after(place, trainer.round)  # also where it was killed before its first checkpoint
    if resumed:
        say(f"resumed after round {trainer.round}")
    try:
        with _asked_to_stop() as asked:
            trainer.stopped = lambda: bool(asked)
            if not resumed:
                trainer.introduce()
                if connection.repeats_rounds:  # after a kill in round 1, what was exchanged before it is not repeated
                    place.append([])  # a checkpoint needs the file of metrics
                    trainer.save(connection.folder)
            while trainer.round < trainer.rounds and not asked:
                result = trainer.run_round()
                _record(place, result, options.as_json, trainer.rounds, trainer.metric)
                trainer.save(connection.folder)
        trainer.save_model(connection.folder / _MODEL, config)
    finally:
        trainer.close()
    if asked:
        _say(f"stopped after round {trainer.round}; run the same command to resume")
    saved = connection.folder / _MODEL
    say(f"the model is in {saved}; use it with: consilience predict {saved} DATA")
    return bool(asked)


def _describe_privacy(trainer: FederatedTrainer) -> str:
    """What is promised of this member's uploads, for a person to read before the first one."""
    plan = trainer.budget.plan
    assert plan is not None
    return (
        f"private uploads: {MECHANISMS[plan.private]}; epsilon {plan.epsilon:g}, delta {plan.delta:g}, for "
        f"{plan.uploads} uploads, {trainer.connection.state.spent['uploads']} made so far"
    )


def _remove_lines_after(place: RunFolder, round_: int) -> None:
    """Remove the lines of rounds that are run again, because they were not saved."""
    if not place.metrics.exists():
        return
    lines = [line.rstrip("\n") for line in place.lines()]
    valid = [line for line in lines if _round_of(line) <= round_]
    if valid != lines:
        place.rewrite(valid)


def _round_of(line: str) -> float:
    """A line's round; infinite for a line that was not written completely."""
    try:
        return int(json.loads(line)["round"])
    except (ValueError, KeyError, TypeError):
        return math.inf


def _open_folder(folder: Path, config: Config) -> RunFolder:
    """The member's folder with its settings; a folder that was started with other settings is refused."""
    if not (folder / "config.toml").exists():
        return RunFolder.create(folder, config)
    place = RunFolder.open(folder)
    before, now = place.config.settings(exclude_none=False), config.settings(exclude_none=False)
    changed = [key for key in now if key != "rounds" and before[key] != now[key]]
    if changed:
        raise CheckpointError(
            f"{folder} was started with another {changed[0]}; use the same, or choose another folder with --out"
        )
    return place


def _record(place: RunFolder, result: RoundResult, as_json: bool, rounds: int, metric: Metric) -> None:
    line = {
        "round": result.round,
        "accuracy": round(result.accuracy, 3),
        **({} if metric == ACCURACY else {"metric": metric.key}),
        **({} if result.accuracy_own is None else {"accuracy_own": round(result.accuracy_own, 3)}),
        "loss": {k: round(v, 6) for k, v in result.losses.items()},
        **({} if result.epsilon is None else {"epsilon": round(result.epsilon, 6)}),
        "acknowledged": result.acknowledged,
        "received": list(result.received),
        "bytes": {"up": result.bytes_up, "down": result.bytes_down},
        **({"members": dict(result.members)} if result.members else {}),
    }
    place.append([json.dumps(line)])
    if as_json:
        print(json.dumps(line), flush=True)
        return
    score = metric.name
    how = "" if result.acknowledged else "  (not acknowledged by the relay; training continues)"
    traffic = f"{result.bytes_up:,} B up, {result.bytes_down:,} B down"
    own = "" if result.accuracy_own is None else f", own {result.accuracy_own:5.1f} %"
    own += "" if result.epsilon is None else f", epsilon {result.epsilon:.2f}"
    who = f"  with {', '.join(f'{name} {round_}' for name, round_ in result.members.items())}" if result.members else ""
    _say(f"round {result.round:>4}/{rounds}  {score} {result.accuracy:5.1f} %{own}  {traffic}{who}{how}")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _silent(text: str) -> None:
    pass


@contextmanager
def _asked_to_stop() -> Iterator[list[int]]:
    """Ctrl-C or SIGTERM ends the work after its round; a second one ends it now."""
    asked: list[int] = []

    def ask(number: int, frame: FrameType | None) -> None:
        if asked:
            raise KeyboardInterrupt
        asked.append(number)

    before: dict[int, Any] = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
