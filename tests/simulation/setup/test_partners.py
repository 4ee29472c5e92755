"""Partners and graphs before the first round: what they are, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from consilience import simulate
from consilience.config.config import make_config
from consilience.config.network import Topology, parse_topology
from consilience.errors import ConfigurationError
from consilience.methods import build_method
from consilience.simulation.setup.partners import plan_partners
from consilience.simulation.setup.topology import build_links

pytestmark = pytest.mark.usefixtures("one_thread")


def links(topology: str, learners: int, seed: int = 0, turn: int = 0) -> np.ndarray:
    return build_links(parse_topology(topology), learners, seed, turn)


def refused(**settings: Any) -> str:
    usual = {"data": "digits", "train": 60, "test": 20, "learners": 4, "rounds": 2, "workers": 0}
    with pytest.raises(ConfigurationError) as error:
        simulate(**{**usual, "method": "representation-sharing", **settings})
    return str(error.value)


# --- graphs


def test_graphs_have_the_links_their_names_say(tmp_path: Path) -> None:
    assert links("ring", 4).astype(int).tolist() == [[0, 1, 0, 1], [1, 0, 1, 0], [0, 1, 0, 1], [1, 0, 1, 0]]
    assert links("complete", 5).sum(1).tolist() == [4] * 5
    # A grid of 2 x 3: corners have two neighbors, the middle has three.
    assert links("grid", 6).sum(1).tolist() == [2, 3, 2, 2, 3, 2]
    assert links("regular(4)", 9, seed=3).sum(1).tolist() == [4] * 9
    assert links("small-world(4, 0.1)", 12).sum() == 48
    assert links("small-world(2, 0)", 6).tolist() == links("ring", 6).tolist()
    file = tmp_path / "links.txt"
    file.write_text("0 1  # a comment\n\n1, 2\n2 2\n")
    assert links(str(file), 3).astype(int).tolist() == [[0, 1, 0], [1, 0, 1], [0, 1, 0]]


def test_random_graphs_depend_on_seed_and_turn_alone() -> None:
    one = links("regular(3)", 16, seed=1, turn=2)
    assert (one == links("regular(3)", 16, seed=1, turn=2)).all()
    assert (one != links("regular(3)", 16, seed=1, turn=3)).any()
    assert (one != links("regular(3)", 16, seed=2, turn=2)).any()


def test_a_disconnected_graph_is_refused_with_who_is_apart(tmp_path: Path) -> None:
    file = tmp_path / "apart.txt"
    file.write_text("0 1\n2 3\n")
    message = refused(topology=str(file))
    assert "not connected" in message and "learner 0" in message and "add links" in message


def test_a_file_for_other_learners_is_refused_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "many.txt"
    file.write_text("0 1\n1 2\n2 7\n")
    assert "line 3 names learner 7; there are learners 0 to 3" in refused(topology=str(file))
    file.write_text("0 1\nfirst second\n")
    assert "line 2 is 'first second'; write two numbers" in refused(topology=str(file))
    assert "cannot be read" in refused(topology=str(tmp_path / "none.txt"))


@pytest.mark.parametrize(
    ("topology", "learners", "said"),
    [
        ("regular(3)", 5, "must be even"),
        ("regular(4)", 4, "at most 3 neighbors among 4 learners"),
        ("small-world(3, 0.1)", 8, "the degree must be even"),
        ("grid", 7, "no rows and columns"),
        ("ring", 1, "nobody to exchange with"),
    ],
)
def test_a_graph_for_the_wrong_number_of_learners_is_refused(topology: str, learners: int, said: str) -> None:
    assert said in refused(topology=topology, learners=learners)


# --- partners


def test_a_group_lists_partners_and_a_learner_always_uses_its_own_uploads(tmp_path: Path) -> None:
    groups = {"a": {"learners": "0-1", "partners": [2]}, "b": {"learners": 2, "partners": "0-1"}}
    plan = plan_partners(make_config({"learners": 3, "partners": "listed", "groups": groups}), build_method("fedavg"))
    assert plan.listed is not None
    assert plan.listed.astype(int).tolist() == [[1, 0, 1], [0, 1, 1], [1, 1, 1]]
    file = tmp_path / "trust.txt"
    file.write_text("0 1\n1 2\n2 0\n")
    plan = plan_partners(make_config({"learners": 3, "partners": str(file)}), build_method("fedavg"))
    assert plan.listed is not None
    assert plan.listed.astype(int).tolist() == [[1, 1, 0], [0, 1, 1], [1, 0, 1]]


def test_lists_that_do_not_fit_are_refused() -> None:
    unknown = {"a": {"learners": "0-3", "partners": [2, 9]}}
    assert "groups.a.partners names learner 9" in refused(partners="listed", groups=unknown)
    some = {"a": {"learners": "0-2", "partners": [2]}}
    assert "no list names partners of learner 3" in refused(partners="listed", groups=some)
    assert "set partners = 'listed'" in refused(groups=some)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"partners": "similar(4)"}, "there are 4 learners"),
        ({"partners": "similar(0)"}, "K must be a whole number, 1 or more"),
        ({"partners": "similar(2)", "method": "fedavg"}, "method 'fedavg' has none"),
        ({"partners": "useful(2)", "method": "federated-distillation", "validation": 0.2}, "class means of features"),
        ({"partners": "useful(2)"}, "validation is 0"),
        ({"partners": "similar(2)", "partners_from": 3}, "partners would never be chosen"),
        ({"partners_every": 2}, "which does not change"),
        ({"partners": "similar(2)", "topology": "ring"}, "give one of the two"),
        ({"lost": 0.1}, "messages travel over a relay"),
        ({"topology": "ring", "topology_every": 2}, "the same graph every time"),
        ({"topology": "star"}, "star"),
        ({"topology": "ring", "aggregation": "median"}, "means over everybody"),
        ({"topology": "ring", "method": "fedavg-1bit"}, "cannot be sent in bit"),
        ({"topology": "ring", "method": "two-stage"}, "exchange 'gradients' (Gradients) needs the uploads of all"),
        ({"partners": "similar(2)", "method": "cluster-sharing"}, "has none"),
        ({"topology": "complete", "method": "cluster-sharing"}, "(Clusters) needs the uploads of all"),
        ({"choose": "relevant", "method": "fedproto"}, "which is for observations"),
        (
            {"choose": "useful", "method": "fedproto", "validation": 0.2},
            "'useful', which is for observations",
        ),
        ({"choose": "useful"}, "decided by validation samples, and validation is 0"),
    ],
)
def test_settings_that_do_not_fit_are_refused_by_name(settings: dict[str, Any], said: str) -> None:
    assert said in refused(**settings)


def test_methods_without_uploads_ignore_partners_and_graphs() -> None:
    usual = {"data": "digits", "train": 60, "test": 20, "learners": 3, "rounds": 1, "workers": 0}
    for method in ("independent", "centralized"):
        assert simulate(**usual, method=method, topology="ring").finished  # type: ignore[arg-type]


def test_random_graphs_are_only_drawn_for_random_kinds() -> None:
    assert Topology("regular", 4).random and not Topology("ring").random
