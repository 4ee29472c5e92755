"""A shard as the engine sees it: calls to an actor, and what to ask another one for if this one is lost.

The calls that change states are kept, from a copy of the states on. When a machine is lost, a new actor gets the copy
and the same calls: learners compute the same again, to the same bits.
"""

from __future__ import annotations

import contextlib
import logging
import time
from dataclasses import dataclass
from typing import Any

from consilience.errors import ClusterError, first_sentence
from consilience.simulation.cluster.connect import describe_resources, losses
from consilience.simulation.engines.ray.shard import Shard

log = logging.getLogger("consilience")

_START_SECONDS = 120.0  # for a process to start on the cluster
_REPLACE_SECONDS = 180.0  # until no other process is asked for in place of a lost one
_COPY_SECONDS = 30.0  # between copies of the states: as often as a run saves checkpoints
_WAITED_FOR = ("do", "read")  # the methods whose results are asked for
_LOSSES = 3  # of processes that are waited for at one call; what is lost again is lost because of the work


@dataclass(eq=False)
class Call:
    """A call to a shard: it is made again of a new actor, unless it changed nothing and its result is known."""

    method: str
    arguments: tuple[Any, ...]
    changes: bool
    ref: Any = None
    number: int = 0  # among all that were made, in order
    done: bool = False


class RemoteShard:
    """An actor with some learners, and the calls it was sent.

    name: its learners, for messages. resources: what it takes of the cluster, {"num_cpus": 1}.
    """

    def __init__(self, ray: Any, name: str, resources: dict[str, float]) -> None:
        self.ray, self.name, self.resources = ray, name, resources
        self.node, self.versions = "", ("", "")
        self.sent_answers: dict[int, Any] = {}
        self._calls: list[Call] = []
        self._unnoticed: list[Call] = []  # those whose results nobody asks for: an error in one must not pass unnoticed
        self._made = 0
        self._copied = time.monotonic()
        self._actor: Any = None

    # -- starting and ending -------------------------------------------------------------------------------------------

    def create(self, **others: Any) -> None:
        """Ask for the actor; it starts when the cluster has what it takes."""
        options = {"max_restarts": 0, "scheduling_strategy": "SPREAD", **self.resources, **others}
        self._actor = self.ray.remote(Shard).options(**options).remote()

    def wait_until_started(self, seconds: float | None = None) -> None:
        """Wait for the actor's process; what is missing is named if it does not start."""
        errors, seconds = self.ray.exceptions, seconds or _START_SECONDS
        try:
            found = self.ray.get(self._actor.describe.remote(), timeout=seconds)
        except errors.GetTimeoutError:
            raise ClusterError(
                f"{self.name}: a process with {_describe(self.resources)} did not start on the cluster within "
                f"{seconds:g} s; it has {describe_resources(self.ray)}; wait until other programs end, add machines, "
                f"or take fewer workers"
            ) from None
        except errors.RayActorError as error:
            raise ClusterError(
                f"{self.name}: a process on the cluster ended as it started; every machine needs this version of "
                f"consilience with torch: {error}"
            ) from error
        self.node, self.versions = found["node"], (found["consilience"], found["torch"])

    def end(self) -> None:
        """End the actor's process."""
        with contextlib.suppress(Exception):  # it may be gone
            self.ray.kill(self._actor, no_restart=True)

    # -- calls ---------------------------------------------------------------------------------------------------------

    def call(self, method: str, *arguments: Any, changes: bool = True) -> Call:
        """Ask for something; calls are done in the order in which they are made."""
        made = Call(method, arguments, changes)
        self._calls.append(made)
        self._make(made)
        return made

    def result(self, call: Call) -> Any:
        """The result of a call; an error in the shard is raised here, also that of an earlier call nobody waits for.

        If the actor is lost, a new one is asked.
        """
        errors, lost = self.ray.exceptions, 0
        while True:
            earlier = [each for each in self._unnoticed if each.number < call.number]
            try:
                found = self.ray.get([each.ref for each in (*earlier, call)])[-1]
                break
            except errors.RayTaskError as error:
                raise self._explained(error) from None
            except losses(self.ray) as error:
                lost += 1
                if lost > _LOSSES:
                    raise self._lost_too_often(lost, error) from error
                self._replace()
            except errors.RayError as error:  # such as one that cannot be sent
                raise ClusterError(f"{self.name}, on {self.node}: {error}") from error
        for each in (*earlier, call):
            each.done, each.ref = True, None
        self._unnoticed = [each for each in self._unnoticed if each.number > call.number]
        if not call.changes:
            self._calls.remove(call)
        return found

    def _lost_too_often(self, lost: int, error: Exception) -> ClusterError:
        return ClusterError(
            f"{self.name}: the process was lost {lost} times at the same work, at last on {self.node}: "
            f"{first_sentence(error)}; if it needs more memory than there is, take fewer workers or smaller batches"
        )

    def wait_for_set_up(self) -> None:
        """Wait for the first call; an error in it is raised here."""
        self.result(self._calls[0])

    def forget_answers(self, numbers: list[int]) -> None:
        """Drop answers that nobody holds any more."""
        for number in numbers:
            del self.sent_answers[number]
        self.call("drop_answers", numbers)

    @property
    def copy_is_due(self) -> bool:
        """Whether the states should be copied, so that few calls would have to be made again."""
        return time.monotonic() - self._copied >= _COPY_SECONDS and all(call.done for call in self._waited_for())

    def keep_copy(self, states: Any) -> None:
        """Make a copy of all states, which `read_all` just gave, what a new actor would start from."""
        answers = [Call("store_answers", arguments, True) for arguments in self.sent_answers.values()]
        self._calls = [self._calls[0], Call("write_all", (states,), True), *answers]
        self._copied = time.monotonic()

    def _waited_for(self) -> list[Call]:
        return [call for call in self._calls if call.method in _WAITED_FOR]

    def _make(self, call: Call) -> None:
        self._made += 1
        call.number, call.ref = self._made, getattr(self._actor, call.method).remote(*call.arguments)
        if call.method not in _WAITED_FOR:
            self._unnoticed.append(call)

    def _replace(self) -> None:
        """Go on with a new actor, wherever there is room."""
        lost = self.node
        log.warning("%s: lost the process on %s; played again from a copy of their states", self.name, lost)
        self._start_again()
        self._unnoticed = []
        for call in self._calls:
            self._make(call)
        log.warning("%s: go on, on %s", self.name, self.node)

    def _start_again(self) -> None:
        """Start a new process; where no CPU is free, one that shares a CPU.

        More than once, because the cluster may take a while to know of a lost machine, and choose it again.
        """
        latest = time.monotonic() + _REPLACE_SECONDS
        while True:
            free = self.ray.available_resources().get("CPU", 0) >= 1 or "num_gpus" in self.resources
            self.end()
            self.create(**({} if free else {"num_cpus": 0}))
            try:
                self.wait_until_started()
                return
            except ClusterError:
                if time.monotonic() > latest:
                    raise

    def _explained(self, error: Any) -> BaseException:
        """The error of a call, as it was raised in the shard."""
        cause: BaseException = error.cause
        cause.add_note(f"on the cluster: {self.name}, on {self.node}")
        return cause


def _describe(resources: dict[str, float]) -> str:
    names = {"num_cpus": "CPU", "num_gpus": "GPU"}
    return " and ".join(f"{amount:g} {names[kind]}" for kind, amount in resources.items())
