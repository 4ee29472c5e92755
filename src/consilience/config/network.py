"""Settings of partners: whose uploads a learner uses, and over which links messages travel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from consilience.config.parsing import Form, Number, parse_setting
from consilience.config.parts import ConfigPart
from consilience.errors import ConfigurationError

Choose = Literal["random", "relevant", "useful"]
"""Which observations a learner gets."""
FILE_SUFFIX = ".txt"
"""How the names of files with links end: one link in a line, two numbers of learners."""


def _whole(name: str, low: int) -> Number:
    return Number(name, lambda value: value >= low and value == int(value), f"a whole number, {low} or more")


_PARTNERS = {
    "everybody": Form(),
    "listed": Form(),
    "similar": Form((_whole("K", 1),)),
    "useful": Form((_whole("K", 1),)),
}
_TOPOLOGIES = {
    "relay": Form(),
    "complete": Form(),
    "ring": Form(),
    "grid": Form(),
    "regular": Form((_whole("DEGREE", 2),)),
    "small-world": Form((_whole("DEGREE", 2), Number("P", lambda p: 0 <= p <= 1, "a number from 0 to 1"))),
}


@dataclass(frozen=True)
class Partners:
    """Whose uploads a learner uses: of everybody, of those listed, or of `count` that are chosen in the run."""

    kind: Literal["everybody", "listed", "similar", "useful"] = "everybody"
    count: int = 0
    file: str = ""  # with the lists; empty where groups have them

    @property
    def chosen(self) -> bool:
        """Whether they are chosen by what learners upload."""
        return self.kind in ("similar", "useful")


@dataclass(frozen=True)
class Topology:
    """Which learners have a link: all over a relay, or by a graph."""

    kind: str = "relay"
    degree: int = 0
    rewired: float = 0.0  # chance that a link of a small world goes elsewhere
    file: str = ""

    @property
    def random(self) -> bool:
        """Whether another seed gives another graph."""
        return self.kind in ("regular", "small-world")


def parse_partners(text: str) -> Partners:
    """The partners that a setting names.

    >>> parse_partners("similar(3)")
    Partners(kind='similar', count=3, file='')
    """
    if text.endswith(FILE_SUFFIX):
        return Partners("listed", file=text)
    word, numbers = parse_setting("partners", text, _PARTNERS)
    return Partners(word, int(numbers[0]) if numbers else 0)  # type: ignore[arg-type]  # a key of _PARTNERS


def parse_topology(text: str) -> Topology:
    """The topology that a setting names.

    >>> parse_topology("small-world(4, 0.1)")
    Topology(kind='small-world', degree=4, rewired=0.1, file='')
    """
    if text.endswith(FILE_SUFFIX):
        return Topology("file", file=text)
    word, numbers = parse_setting("topology", text, _TOPOLOGIES)
    degree, rewired = (*numbers, 0.0, 0.0)[:2]
    return Topology(word, int(degree), rewired)


def _known_partners(given: str) -> str:
    parse_partners(given)
    return given


def _known_topology(given: str) -> str:
    parse_topology(given)
    return given


class NetworkConfig(ConfigPart):
    """Whose uploads a learner uses, and over which links messages travel."""

    heading = "Partners: whose uploads a learner uses, and over which links messages travel"

    partners: Annotated[str, AfterValidator(_known_partners)] = Field(
        "everybody",
        description="whose uploads a learner uses beside its own: everybody; listed, those that its group lists; a "
        "file (.txt) with a line 'LEARNER PARTNER' for each; similar(K), the K learners with the most similar class "
        "means; useful(K), the K whose class means predict its validation samples best",
    )
    partners_from: int = Field(
        1, ge=0, description="the round whose uploads chosen partners are first chosen by; 0: those before training"
    )
    partners_every: int = Field(0, ge=0, description="choose partners again every N rounds; 0: never")
    choose: Choose = Field(
        "random",
        description="which of the observations a learner gets: random ones; relevant, those of others that are nearest "
        "to its own; or useful, those of others that predict its validation samples best",
    )
    topology: Annotated[str, AfterValidator(_known_topology)] = Field(
        "relay",
        description="over what messages travel: relay; or peer to peer over the links of a graph: complete, ring, "
        "grid, regular(DEGREE), small-world(DEGREE, P), or a file (.txt) with a line 'LEARNER LEARNER' for each link",
    )
    topology_every: int = Field(0, ge=0, description="a new random graph every N rounds; 0: one graph for all rounds")
    gossip_steps: int = Field(1, ge=1, description="peer to peer: how often neighbors average in a round")
    lost: float = Field(
        0.0, ge=0, lt=1, description="peer to peer: probability that the message of a link is lost in a round"
    )

    @property
    def plan(self) -> Partners:
        """The partners, parsed."""
        return parse_partners(self.partners)

    @property
    def graph(self) -> Topology:
        """The topology, parsed."""
        return parse_topology(self.topology)

    @model_validator(mode="after")
    def _fit_together(self) -> NetworkConfig:
        graph, plan = self.graph, self.plan
        if graph.kind == "relay":
            usual = {"topology_every": 0, "gossip_steps": 1, "lost": 0.0}
            for key, default in usual.items():
                if getattr(self, key) != default:
                    raise ConfigurationError(
                        f"{key} is {getattr(self, key)}, and messages travel over a relay; give a topology, such as "
                        f"'ring', or leave {key} out"
                    )
        elif plan.kind != "everybody":
            raise ConfigurationError(
                f"partners is {self.partners!r} and topology is {self.topology!r}: a graph says already who gets whose "
                f"messages; give one of the two"
            )
        if self.topology_every and not graph.random:
            raise ConfigurationError(
                f"topology_every is {self.topology_every}, and topology {self.topology!r} is the same graph every "
                f"time; use regular(DEGREE) or small-world(DEGREE, P)"
            )
        if self.partners_every and not plan.chosen:
            raise ConfigurationError(
                f"partners_every is {self.partners_every}, and partners is {self.partners!r}, which does not change; "
                f"use similar(K) or useful(K)"
            )
        return self
