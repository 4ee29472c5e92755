"""A Flower grid without a network: messages go to ClientApps in this process, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.server.superlink.linkstate.utils import create_message_error_unavailable_res_message
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1  # as flwr-serverapp sets it before it runs an app

Loses = Callable[[str, Message], bool]
"""Whether a message to the node, or its reply, is lost: called with "message" or "reply" before each."""


@dataclass
class LocalNode:
    """A node: its app, its configuration, and whether it is there."""

    app: ClientApp
    config: Mapping[str, str | int]
    id: int = 0
    loses: Loses = lambda what, message: False
    served: list[str] = field(default_factory=list)
    """Types of the messages that it has worked on."""

    def context(self) -> Context:
        return Context(run_id=1, node_id=self.id, node_config=dict(self.config), state=RecordDict(), run_config={})


class LocalGrid(Grid):
    """Nodes by number. after: called when all messages of a step were served."""

    def __init__(self, nodes: Sequence[LocalNode], after: Callable[[str], None] = lambda kind: None) -> None:
        self.nodes: dict[int, LocalNode] = {}
        self.after = after
        self.steps: list[str] = []
        for node in nodes:
            self.add(node)

    def add(self, node: LocalNode) -> int:
        node.id = node.id or 1000 + 7 * len(self.nodes)
        self.nodes[node.id] = node
        return node.id

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        replies, kind = [], ""
        for message in messages:
            kind = message.metadata.message_type
            message.metadata.__dict__["_message_id"] = message.object_id  # as Flower's own grid does
            node = self.nodes.get(message.metadata.dst_node_id)
            if node is None or node.loses("message", message):
                replies.append(create_message_error_unavailable_res_message(message.metadata, "node_unavail"))
                continue
            node.served.append(kind)
            try:
                reply = node.app(message, node.context())
            except Exception as error:
                reply = Message(Error(code=1, reason=str(error)), reply_to=message)
            if not node.loses("reply", message):
                replies.append(reply)
        self.steps.append(kind)
        self.after(kind)
        return replies

    def get_node_ids(self) -> list[int]:
        return list(self.nodes)

    @property
    def run(self) -> Run:
        raise NotImplementedError

    def set_run(self, run: Run) -> None:
        raise NotImplementedError

    def create_message(self, *given: object, **named: object) -> Message:
        raise NotImplementedError

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        raise NotImplementedError

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        raise NotImplementedError
