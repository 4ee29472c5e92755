"""The matrix of a round: gossip weights, lost messages, chosen partners, their bytes, and groups that are found."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from consilience import simulate
from consilience.simulation.federation import Federation
from consilience.simulation.result import Result
from consilience.simulation.round.choose_partners import best_partners, found_groups, similarities
from consilience.simulation.round.scopes import Links, gossip_scope, metropolis_weights
from consilience.simulation.round.usefulness import entry_losses, usefulness
from consilience.wire import schema
from consilience.wire.encodings import FLOAT32

pytestmark = pytest.mark.usefixtures("one_thread")
LINE = np.array([[0, 1, 0], [1, 0, 1], [0, 1, 0]], dtype=bool)


def run(**settings: Any) -> Result:
    usual = {"data": "digits", "train": 120, "test": 60, "learners": 4, "rounds": 3, "workers": 0}
    return simulate(**{**usual, "method": "representation-sharing", **settings})


def first_weights(result: Result) -> list[np.ndarray]:
    """The first weights of every learner's model."""
    return [next(result.models[0, who].parameters()).detach().numpy() for who in range(4)]


# --- gossip


def test_metropolis_weights_of_a_line() -> None:
    third = 1 / 3
    expected = [[2 * third, third, 0], [third, third, third], [0, third, 2 * third]]
    assert np.allclose(metropolis_weights(LINE, LINE), expected)


def test_what_is_lost_stays_with_the_receiver() -> None:
    arrived = LINE.copy()
    arrived[0, 1] = False  # the message of 1 to 0; that of 0 to 1 arrives
    weights = metropolis_weights(LINE, arrived)
    assert np.allclose(weights[0], [1, 0, 0]) and np.allclose(weights[1], [1 / 3] * 3)


def test_two_gossip_steps_are_the_product_of_two_and_reach_two_links_far() -> None:
    scope = gossip_scope(Links(LINE, (LINE, LINE)))
    once = metropolis_weights(LINE, LINE)
    assert np.allclose(scope.weights, once @ once) and scope.weights[0, 2] > 0
    assert np.allclose(scope.weights.sum(0), 1) and np.allclose(scope.weights.sum(1), 1)
    assert scope.entries.astype(int).tolist() == [[1, 1, 0], [1, 1, 1], [0, 1, 1]]  # observations go one link far


@pytest.mark.parametrize("method", ["representation-sharing", "fedavg", "federated-distillation"])
def test_a_complete_graph_is_the_relay(method: str) -> None:
    relay, graph = (run(method=method, topology=t, precision="float64") for t in ("relay", "complete"))
    assert np.allclose(relay.history["loss.cross_entropy"], graph.history["loss.cross_entropy"], atol=1e-9)
    one_message = relay.history["bytes.up"][1]
    assert np.array_equal(graph.history["bytes.up"][1], 3 * one_message)  # one for each of three neighbors
    assert np.array_equal(graph.history["bytes.down"][1], 3 * one_message)


def test_lost_messages_count_at_their_senders_only() -> None:
    found, ring = run(topology="ring", lost=0.5, rounds=20), run(topology="ring", rounds=20)
    sent, arrived = found.history["bytes.up"], found.history["bytes.down"]
    assert np.array_equal(sent, ring.history["bytes.up"])
    assert set(np.unique(arrived / ring.history["bytes.up"][1, 0, 0])) == {0.0, 0.5, 1.0}
    assert 0.35 < arrived.sum() / sent.sum() < 0.65


def test_later_gossip_steps_send_means_only_and_in_float32() -> None:
    one = run(topology="ring", method="representation-sharing:encoding=float16")
    two = run(topology="ring", method="representation-sharing:encoding=float16", gossip_steps=2)
    alone = run(topology="ring", method="fedproto")  # prototypes in float32
    more = two.history["bytes.up"][1] - one.history["bytes.up"][1]
    assert np.array_equal(more, alone.history["bytes.up"][1])


def test_neighbors_in_a_ring_end_up_with_different_weights_and_one_mean() -> None:
    ring = run(method="fedavg", topology="ring", rounds=2)
    models = first_weights(ring)
    assert not np.allclose(models[0], models[1])


def test_who_is_offline_sends_and_gets_nothing() -> None:
    found = run(topology="complete", reachable="fixed(2)")
    assert (found.history["bytes.up"][:, 0, 2:] == 0).all() and (found.history["bytes.down"][:, 0, 2:] == 0).all()
    assert (found.history["bytes.up"][:, 0, :2] > 0).all()


# --- chosen partners

MEANS = np.array(
    [
        [[1.0, 0.0], [-1.0, 0.0]],
        [[2.0, 0.1], [-2.0, 0.0]],
        [[-1.0, 0.0], [1.0, 0.0]],  # the classes of 0 and 1, the other way round
        [[-1.0, 0.0], [0.0, 0.0]],  # has the first class only
    ]
)
COUNTS = np.array([[5, 5], [5, 5], [5, 5], [5, 0]])


def test_similarity_is_a_mean_cosine_over_the_classes_both_have() -> None:
    means, counts = MEANS[[0, 2, 3]], COUNTS[[0, 2, 3]]
    found = similarities(means, counts)  # the center is (-0.2, 0)
    assert found[0, 1] == pytest.approx(-1) and found[1, 2] == pytest.approx(1) and found[0, 2] == pytest.approx(-1)
    assert found[0, 0] == pytest.approx(1) and np.array_equal(found, found.T)
    assert similarities(means, np.array([[1, 0], [0, 1], [0, 0]]))[0, 1] == -math.inf


def test_the_best_partners_are_those_with_the_highest_scores_and_oneself() -> None:
    scores = np.array([[9.0, 2, 1], [5, 9, 7], [-math.inf, -math.inf, -math.inf]])
    chosen = best_partners(scores, np.array([True, True, True]), 1)
    assert chosen.astype(int).tolist() == [[1, 1, 0], [0, 1, 1], [1, 1, 1]]  # who knows nothing uses everybody
    absent = best_partners(scores, np.array([True, False, True]), 1)
    assert absent.astype(int).tolist() == [[1, 0, 1], [1, 1, 1], [1, 1, 1]]


def test_useful_means_predict_the_classes_of_validation_samples() -> None:
    features, targets = np.array([[1.0, 0.0], [-1.0, 0.0]]), np.array([0, 1])
    found = usefulness(MEANS, COUNTS, [(features, targets), None, None, None])
    # Squared distances to means 0 are 0 and 4: relative to their mean, 0 and 2.
    assert found[0, 0] == pytest.approx(-math.log(1 + math.exp(-2)))
    assert found[0, 2] == pytest.approx(-math.log(1 + math.exp(2)))
    assert found[0, 3] == pytest.approx(-(0 - math.log(1e-6)) / 2)  # it does not know the second class
    assert (found[1:] == -math.inf).all() and found[0].argmax() in (0, 1)


def test_groups_are_what_mutual_partners_connect() -> None:
    chosen = np.eye(5, dtype=bool)
    for a, b in [(0, 1), (1, 0), (2, 3), (3, 2), (3, 4), (4, 3), (1, 2)]:  # 2 did not choose 1
        chosen[a, b] = True
    groups = found_groups(chosen)
    assert len(set(groups[:2])) == len(set(groups[2:])) == 1 and groups[0] != groups[2]


def test_partners_by_similarity_find_two_groups_with_swapped_labels_and_gain() -> None:
    settings: dict[str, Any] = {"train": 600, "test": 300, "learners": 6, "rounds": 10, "method": "consilience"}
    settings |= {"groups": {"swapped": {"learners": "3-5", "shift": "swap(1)"}}, "eval_every": 10}
    everybody, similar = run(**settings), run(**settings, partners="similar(2)", partners_from=0)
    assert (similar.history["partners_rand"] == 1).all() and "partners_rand" not in everybody.history
    assert similar.summary()["accuracy_own"]["mean"] > everybody.summary()["accuracy_own"]["mean"] + 5


def test_until_partners_are_chosen_everybody_is_one() -> None:
    late, never = run(partners="similar(1)", partners_from=3), run()
    assert np.array_equal(late.history["loss.cross_entropy"], never.history["loss.cross_entropy"])


def test_listed_partners_learn_only_from_each_other() -> None:
    pairs = {"a": {"learners": "0-1", "partners": "0-1"}, "b": {"learners": "2-3", "partners": "2-3"}}
    one = run(partners="listed", groups=pairs, method="fedavg")
    models = first_weights(one)
    assert np.array_equal(models[0], models[1]) and np.array_equal(models[2], models[3])
    assert not np.allclose(models[0], models[2])


# --- useful observations


def observations(means: list[list[list[float]]]) -> Federation:
    """A federation whose learners have uploaded one observation each, of two classes and two dimensions."""
    tensor = schema.Tensor((2, 2), FLOAT32, FLOAT32)
    channels: dict[str, schema.Channel] = {"o": schema.Pool("o", {"mean": tensor}, rows=(2,))}
    made, values = Federation(0, channels, 3, {}, torch.zeros(1, dtype=torch.float64)), torch.tensor(means)
    ones, who = torch.ones(3, 1, 2, dtype=torch.float64), np.arange(3)
    made.upload("o", who, {"mean": values[:, None].double()}, ones, who * 0, 0)
    return made


def test_a_learner_gets_the_observation_that_predicts_its_validation_samples_best() -> None:
    right, wrong = [[1.0, 0.0], [-1.0, 0.0]], [[-1.0, 0.0], [1.0, 0.0]]
    one, readers = observations([right, wrong, right]), np.arange(3)
    held = [(np.array([[1.0, 0.0], [-1.0, 0.0]]), np.array(targets)) for targets in ([0, 1], [1, 0])]
    losses = entry_losses(one, "o", readers, [*held, None], 1, 0)
    best, worst = math.log(1 + math.exp(-2)), math.log(1 + math.exp(2))  # squared distances 0 and 4, their mean 2
    assert np.allclose(losses[:2], [[best, worst, best], [worst, best, worst]])
    assert ((losses[2] >= 0) & (losses[2] < 1)).all() and len(set(losses[2])) == 3  # at random without samples
    answer, which = one.answers("o", readers, 1, 0, losses=losses)
    assert answer.tensors["mean"][0, 0].tolist() == right and which.tolist() == [0, 1, 2]


def test_useful_observations_change_training_and_no_bytes() -> None:
    random, useful = (run(choose=how, validation=0.2).history for how in ("random", "useful"))
    assert not np.allclose(random["loss.observations"], useful["loss.observations"], equal_nan=True)
    assert np.array_equal(random["bytes.down"], useful["bytes.down"])
