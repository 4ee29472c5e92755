"""One run of a federation over Flower: its rounds, and the nodes that take part in each."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from consilience.errors import ConfigurationError, ConsilienceError, WireError
from consilience_flower.gateway import RelayGateway, why_refused
from consilience_flower.node import INTRODUCTION, metrics_of
from consilience_flower.requests import (
    AGAIN,
    ANSWERS_PATH,
    RECORD,
    STATUS,
    RelayRequest,
    Responses,
    pack_responses,
    unpack_requests,
)
from consilience_flower.settings import FederationSettings

log = logging.getLogger("flwr")
_POLL = 0.5  # seconds
_AGAIN = 3  # how often a node may ask for responses before it works


@dataclass
class Node:
    """A node that takes part.

    every_message: whether it also gets the message before training, and those to test.
    """

    id: int
    member: str
    every_message: bool = True
    number: int = 0
    responses: Responses = field(default_factory=dict)
    """What goes out with the next message to it."""
    up: int = 0
    down: int = 0
    """Bytes of the bodies of this round."""
    metrics: dict[str, float | int] = field(default_factory=dict)


class FederationRun:
    """All rounds. A node that vanishes is left out, and takes part again when it is back, as the member it was."""

    def __init__(self, grid: Grid, relay: RelayGateway, settings: FederationSettings) -> None:
        self._grid, self._relay, self._settings = grid, relay, settings
        self._nodes: dict[str, Node] = {}
        """Those that take part, by the name of the member."""
        self._introduced: dict[str, Node] = {}
        """Those that have said who they are, and wait until enough have."""
        self._refused: set[int] = set()
        """Nodes that take no part in this run."""

    def run(self) -> None:
        """The round before training, then all others."""
        self._gather(self._settings.nodes)
        for round_ in range(self._settings.rounds + 1):
            self._gather(self._settings.least)
            self._play(round_)

    # -- who takes part ------------------------------------------------------------------------------------------------

    def _gather(self, least: int) -> None:
        """Find out who is there, and wait until enough are; they become members in the order of their names."""
        end = time.monotonic() + self._settings.timeout
        while True:
            self._meet()
            if len(self._nodes.keys() | self._introduced.keys()) >= least:
                for name in sorted(self._introduced):
                    self._admit(self._introduced.pop(name))
            if len(self._nodes) >= least:
                return
            if time.monotonic() > end:
                there = len(self._nodes) + len(self._introduced)
                raise ConfigurationError(
                    f"{there} nodes take part, and {least} are needed, after {self._settings.timeout:g} s "
                    f"(consilience-timeout); {len(self._refused)} were refused, and the log says why"
                )
            time.sleep(_POLL)

    def _meet(self) -> None:
        """Forget nodes that have left, and ask new ones who they are."""
        there = set(self._grid.get_node_ids())
        for known in (self._nodes, self._introduced):
            for name, node in list(known.items()):
                if node.id not in there:
                    log.warning("%s has left; the others go on", name)
                    del known[name]
        met = {node.id for known in (self._nodes, self._introduced) for node in known.values()}
        asked = [Node(id_, f"node {id_}") for id_ in sorted(there - met - self._refused)]
        charter = ConfigRecord({"charter": self._relay.charter.to_toml()})
        for id_, record in sorted(self._send(asked, INTRODUCTION, lambda node: charter).items()):
            node = Node(id_, str(record.get("member", "")), record.get("every_message") is True)
            for known in (self._nodes, self._introduced):
                if node.member in known:
                    self._replace(known.pop(node.member))
            self._introduced[node.member] = node

    def _replace(self, node: Node) -> None:
        """A node that was started again has another number, and takes the place of the one before."""
        self._refuse(
            node,
            f"a newer node is called {node.member!r} too, and is the member now. If both are running, give each its "
            f"own name: flower-supernode --node-config \"consilience-member='NAME'\"",
        )

    def _admit(self, node: Node) -> None:
        try:
            node.number = self._relay.admit(node.member)
        except ConsilienceError as error:
            self._refuse(node, str(error))
            return
        log.info("%s takes part, as member %d", node.member, node.number)
        self._nodes[node.member] = node

    def _refuse(self, node: Node, why: str) -> None:
        unnamed = f"node {node.id}"
        log.error("%s takes no part: %s", unnamed if node.member == unnamed else f"{node.member} ({unnamed})", why)
        self._refused.add(node.id)
        if self._nodes.get(node.member) is node:
            del self._nodes[node.member]

    # -- a round -------------------------------------------------------------------------------------------------------

    def _play(self, round_: int) -> None:
        """One round: train and upload, then, where that is wanted, receive and test."""
        nodes = sorted(self._nodes.values(), key=lambda node: node.number)
        for node in nodes:
            node.up, node.down, node.metrics = 0, 0, {}
        replied = self._step(round_, "train", [node for node in nodes if round_ > 0 or node.every_message])
        if self._settings.evaluate:
            self._step(round_, "evaluate", [node for node in replied if node.every_message])
        self._write(round_, replied)

    def _step(self, round_: int, kind: str, nodes: Sequence[Node]) -> list[Node]:
        """One message to each of these nodes, and what its reply asks of the relay; the nodes that have replied."""
        asked: dict[int, list[RelayRequest]] = {}
        left = list(nodes)
        for _ in range(_AGAIN):
            replies = self._send(left, kind, lambda node: self._content(node, round_))
            for node in [node for node in left if node.id in replies]:
                requests = self._read(node, replies[node.id])
                if requests is not None:
                    asked[node.id] = requests
            left = [node for node in left if node.id in asked and replies[node.id].get(AGAIN) is True]
            self._serve(left, asked, again=True)
            for node in left:
                del asked[node.id]
            if not left:
                break
        for node in left:
            log.error("%s needs more of the relay, %d times, and does not %s", node.member, _AGAIN, kind)
        done = [node for node in nodes if node.id in asked]
        self._serve(done, asked, again=False)
        return done

    def _content(self, node: Node, round_: int) -> ConfigRecord:
        """What a message says: the member's status, and the responses to what it has asked."""
        responses = node.responses | self._relay.send(node.member, [STATUS])
        return pack_responses(responses, {"round": round_, "rounds": self._settings.rounds})

    def _serve(self, nodes: Sequence[Node], asked: Mapping[int, list[RelayRequest]], *, again: bool) -> None:
        """Pass on what nodes ask of the relay: all uploads first, in the order of members, and then the questions."""
        for node in nodes:
            uploads = [each for each in asked[node.id] if each.method == "PUT"]
            receipts = self._relay.send(node.member, uploads)
            for request in uploads:
                if receipts[request.key].status == 200:
                    node.up += len(request.body)
                else:
                    log.warning("%s: its upload is refused: %s", node.member, why_refused(receipts[request.key]))
            node.responses = {**(node.responses if again else {}), **receipts}
        if not again and any(node.responses for node in nodes):
            self._relay.wait_for_means(nodes[0].member, self._settings.timeout)
        for node in nodes:
            answers = self._relay.send(node.member, [each for each in asked[node.id] if each.method == "GET"])
            node.responses |= answers
            node.down += sum(len(each.body) for key, each in answers.items() if ANSWERS_PATH in key)

    def _read(self, node: Node, record: ConfigRecord) -> list[RelayRequest] | None:
        """What a node asks of the relay; None where its reply cannot be read, and the node takes no part any more."""
        try:
            requests = unpack_requests(record)
            self._relay.check(requests)
        except WireError as error:
            self._refuse(node, str(error))
            return None
        node.metrics |= metrics_of(record)
        return requests

    def _send(
        self, nodes: Sequence[Node], kind: str, content: Callable[[Node], ConfigRecord]
    ) -> dict[int, ConfigRecord]:
        """Send a message to each node; the records of the replies. Nodes that fail or refuse are left out."""
        if not nodes:
            return {}
        group, seconds = f"{kind}-{time.monotonic_ns()}", self._settings.timeout
        messages = [
            Message(RecordDict({RECORD: content(node)}), node.id, kind, ttl=seconds, group_id=group) for node in nodes
        ]
        named = {node.id: node for node in nodes}
        found: dict[int, ConfigRecord] = {}
        replies = list(self._grid.send_and_receive(messages, timeout=seconds))
        sent = {message.metadata.message_id: named[message.metadata.dst_node_id] for message in messages}
        for reply in replies:
            metadata = reply.metadata  # the SuperLink replies itself for a node that is not there
            node = named.get(metadata.src_node_id) or sent[metadata.reply_to_message_id]
            record = self._record_of(node, kind, reply)
            if record is not None:
                found[node.id] = record
        for id_ in named.keys() - found.keys() - self._refused:
            log.warning("%s has not replied to %s; the others go on", named[id_].member, kind)
        return found

    def _record_of(self, node: Node, kind: str, reply: Message) -> ConfigRecord | None:
        """The bridge's record of a reply; None, and why in the log, where there is none."""
        if reply.has_error() and reply.metadata.src_node_id != node.id:
            log.warning("%s: %s", node.member, reply.error.reason)
            return None
        if reply.has_error():
            why = f"its ClientApp failed: {reply.error.reason}"
            if kind == INTRODUCTION:
                self._refuse(node, f"{why}; it needs member_app() or join_federation(app) of consilience-flower")
            else:
                log.error("%s: %s", node.member, why)
            return None
        record = reply.content.get(RECORD)
        if not isinstance(record, ConfigRecord):
            self._refuse(node, "its ClientApp is not one of consilience-flower; return what peer.reply() makes")
        elif "refused" in record:
            self._refuse(node, str(record["refused"]))
        elif "failed" in record:
            log.error("%s: %s", node.member, record["failed"])
        else:
            return record
        return None

    def _write(self, round_: int, nodes: Sequence[Node]) -> None:
        """Write down a round: a line for each member beside the store, and one in the log."""
        lines = [
            {"round": round_, "member": n.member, "bytes_up": n.up, "bytes_down": n.down, **_own(n.metrics)}
            for n in nodes
        ]
        with self._settings.results.open("a", encoding="utf-8") as file:
            file.writelines(f"{json.dumps(line)}\n" for line in lines)
        up, down = sum(node.up for node in nodes), sum(node.down for node in nodes)
        log.info("round %d: %d nodes, %d bytes up, %d bytes down", round_, len(nodes), up, down)
        for node in nodes:
            log.info("round %d, %s: %s", round_, node.member, _shown(_own(node.metrics)))


def _own(metrics: Mapping[str, float | int]) -> dict[str, float | int]:
    """What a node measured; bytes are those that the server has seen."""
    return {name: value for name, value in metrics.items() if not name.startswith("bytes_")}


def _shown(metrics: Mapping[str, float | int]) -> str:
    return ", ".join(f"{name} {value:.6g}" for name, value in metrics.items()) or "no metrics"
