"""The ServerApp: asks the nodes who they are, and passes their requests to the relay in every round."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.serverapp import Grid, ServerApp

from consilience.errors import ConfigurationError
from consilience_flower.gateway import RelayGateway
from consilience_flower.requests import RECORD, STATUS, RelayRequest, RelayResponse, pack_responses, unpack_requests

log = logging.getLogger("flwr")
_POLL = 0.2  # seconds


@dataclass(frozen=True)
class FederationSettings:
    """What the run configuration says.

    evaluate: whether nodes get a second message in a round, with the others' answers, which they then test with.
    """

    charter: Path
    store: Path
    nodes: int
    rounds: int
    evaluate: bool
    timeout: float

    @classmethod
    def of(cls, config: Mapping[str, object]) -> FederationSettings:
        """Read the keys `consilience-...` of a run configuration."""
        known = {f"consilience-{each}": each for each in ("charter", "store", "nodes", "rounds", "evaluate", "timeout")}
        unknown = [key for key in config if key.startswith("consilience-") and key not in known]
        if unknown or "consilience-charter" not in config:
            raise ConfigurationError(
                f"run configuration: {f'unknown key {unknown[0]!r}' if unknown else 'consilience-charter is missing'}; "
                f"there are {', '.join(known)}, in [tool.flwr.app.config] of pyproject.toml or --run-config"
            )
        charter = Path(str(config["consilience-charter"])).expanduser()
        store = Path(str(config.get("consilience-store", charter.with_suffix(".db")))).expanduser()
        numbers = {key: config.get(f"consilience-{key}", default) for key, default in (("nodes", 2), ("rounds", 10))}
        for key, value in numbers.items():
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ConfigurationError(f"consilience-{key} is {value!r}; a whole number of at least 1 is needed")
        evaluate, timeout = config.get("consilience-evaluate", True), config.get("consilience-timeout", 600)
        return cls(charter, store, int(numbers["nodes"]), int(numbers["rounds"]), bool(evaluate), float(timeout))  # type: ignore[arg-type]


@dataclass
class _Node:
    """A node that takes part."""

    id: int
    member: str
    number: int = 0
    questions: list[RelayRequest] = field(default_factory=list)
    responses: dict[str, RelayResponse] = field(default_factory=dict)


def server_app() -> ServerApp:
    """A ServerApp that runs the federation which the run configuration names."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        settings = FederationSettings.of(context.run_config)
        with RelayGateway(settings.store, settings.charter) as relay:
            FederationRun(grid, relay, settings).run()

    return app


class FederationRun:
    """One run: the nodes that are there at its start, over all rounds."""

    def __init__(self, grid: Grid, relay: RelayGateway, settings: FederationSettings) -> None:
        self._grid, self._relay, self._settings = grid, relay, settings
        self._nodes: list[_Node] = []

    def run(self) -> None:
        """All rounds, after the one before training."""
        self._nodes = self._meet()
        for round_ in range(self._settings.rounds + 1):
            self._step(round_, "train")
            if self._settings.evaluate:
                self._step(round_, "evaluate")

    def _meet(self) -> list[_Node]:
        """Wait for the nodes, ask their names, and make each a member."""
        settings, end = self._settings, time.monotonic() + self._settings.timeout
        while len(ids := sorted(self._grid.get_node_ids())) < settings.nodes:
            if time.monotonic() > end:
                raise ConfigurationError(
                    f"{len(ids)} of {settings.nodes} nodes (consilience-nodes) came within {settings.timeout:g} s"
                )
            time.sleep(_POLL)
        asked = {"charter": self._relay.charter.fingerprint, "federation": self._relay.charter.name}
        nodes = [_Node(id_, f"node-{id_}") for id_ in ids]
        replies = self._send(nodes, "query", lambda node: ConfigRecord(asked))
        met = [_Node(node.id, str(replies[node.id]["member"])) for node in nodes if node.id in replies]
        names = sorted(node.member for node in met)
        if twice := [name for name in names if names.count(name) > 1]:
            raise ConfigurationError(
                f"two nodes are called {twice[0]!r}; give each its own name, flower-supernode --node-config "
                f"\"consilience-member='NAME'\""
            )
        numbers = self._relay.admit(names)
        for node in met:
            node.number = numbers[node.member]
        self._require(met)
        return sorted(met, key=lambda node: node.number)

    def _require(self, nodes: Sequence[_Node]) -> None:
        if len(nodes) < self._settings.nodes:
            raise ConfigurationError(
                f"{len(nodes)} nodes take part, and consilience-nodes is {self._settings.nodes}; the lines above say "
                f"why the others do not"
            )

    def _step(self, round_: int, kind: str) -> None:
        """One message to every node, and what its reply asks of the relay: all uploads first, in member order."""

        def content(node: _Node) -> ConfigRecord:
            status = self._relay.send(node.member, [RelayRequest("GET", STATUS)])
            return pack_responses(node.responses | status, {"round": round_, "rounds": self._settings.rounds})

        replies = self._send(self._nodes, kind, content)
        self._nodes = [node for node in self._nodes if node.id in replies]
        self._require(self._nodes)
        asked = {node.id: unpack_requests(replies[node.id]) for node in self._nodes}
        for node in self._nodes:
            uploads = [each for each in asked[node.id] if each.method == "PUT"]
            for path, response in self._relay.send(node.member, uploads).items():
                if response.status != 200:
                    log.warning(
                        "%s: %s is refused: %s", node.member, path, response.body[:300].decode(errors="replace")
                    )
        for node in self._nodes:
            questions = [each for each in asked[node.id] if each.method == "GET"]
            if questions:
                node.responses = self._relay.send(node.member, questions)
        self._report(round_, kind, replies)

    def _report(self, round_: int, kind: str, replies: Mapping[int, ConfigRecord]) -> None:
        for node in self._nodes:
            record = replies[node.id]
            values = {k.removeprefix("metric."): v for k, v in record.items() if k.startswith("metric.")}
            if values:
                shown = ", ".join(f"{k} {v:g}" if isinstance(v, float) else f"{k} {v}" for k, v in values.items())
                log.info("round %d %s %s: %s", round_, kind, node.member, shown)

    def _send(self, nodes: Sequence[_Node], kind: str, content: object) -> dict[int, ConfigRecord]:
        """Send a message to each node; the records of the replies. Nodes that fail or refuse are left out."""
        group = f"{kind}-{time.monotonic_ns()}"
        messages = [
            Message(RecordDict({RECORD: content(node)}), node.id, kind, group_id=group)  # type: ignore[operator]
            for node in nodes
        ]
        names = {node.id: node.member for node in nodes}
        found: dict[int, ConfigRecord] = {}
        for reply in self._grid.send_and_receive(messages, timeout=self._settings.timeout):
            id_ = reply.metadata.src_node_id
            if reply.has_error():
                log.error("%s takes no part any more: %s", names.get(id_, id_), reply.error.reason)
                continue
            record = reply.content.get(RECORD)
            if not isinstance(record, ConfigRecord):
                log.error("%s takes no part: its ClientApp is not one of consilience-flower", names.get(id_, id_))
            elif "refused" in record:
                log.error("%s takes no part: %s", names.get(id_, id_), record["refused"])
            else:
                found[id_] = record
        for id_, name in names.items():
            if id_ not in found:
                log.warning("%s has not answered %s", name, kind)
        return found
