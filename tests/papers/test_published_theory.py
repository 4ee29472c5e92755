"""What the papers prove or count, on distributions and points small enough to compute everything."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import torch

from consilience.data.heterogeneity import CASES, heterogeneity_case
from consilience.functional.distance_correlation import distance_correlation
from consilience.papers.two_stage.table2 import PUBLISHED_TABLE

Table = np.ndarray
"""Probabilities of pairs, (values of s, values of t)."""


def independent(p: Table) -> Table:
    """The product of the marginals."""
    apart: Table = p.sum(1, keepdims=True) * p.sum(0, keepdims=True)
    return apart


def mutual_information(p: Table) -> float:
    seen = p > 0
    return float((p[seen] * np.log(p[seen] / independent(p)[seen])).sum())


def bound(p: Table, apart: Table, h: Table, k: float) -> float:
    """log K - L_disc of Theorem 1; pairs are drawn from p, and K times as many from `apart`."""
    with np.errstate(divide="ignore"):
        together, apart_ = np.where(p > 0, np.log(h), 0.0), np.where(apart > 0, np.log(1 - h), 0.0)
    return float(np.log(k) + (p * together).sum() + k * (apart * apart_).sum())


def posterior(p: Table, apart: Table, k: float) -> Table:
    """The best discriminator: the probability that a pair was drawn from p."""
    best: Table = p / (p + k * apart)
    return best


def random_pairs(seed: int) -> tuple[np.random.Generator, Table]:
    drawn = np.random.default_rng(seed)
    return drawn, drawn.dirichlet(np.full(12, 0.3)).reshape(3, 4)


# --- Theorem 1 of Berdoz 2022


@pytest.mark.parametrize("k", [1, 2, 9, 100])
@pytest.mark.parametrize("seed", range(5))
def test_theorem_1_bounds_the_mutual_information_for_any_discriminator(seed: int, k: float) -> None:
    drawn, p = random_pairs(seed)
    for h in (*drawn.uniform(0.01, 0.99, (50, *p.shape)), posterior(p, independent(p), k)):
        assert bound(p, independent(p), h, k) <= mutual_information(p)


@pytest.mark.parametrize("seed", range(5))
def test_the_best_discriminator_of_theorem_1_gives_the_tightest_bound(seed: int) -> None:
    drawn, p = random_pairs(seed)
    best = posterior(p, independent(p), 9)
    for h in np.clip(best + drawn.normal(0, 0.1, (50, *p.shape)), 1e-6, 1 - 1e-6):
        assert bound(p, independent(p), h, 9) < bound(p, independent(p), best, 9)


def test_theorem_1_has_no_equality_even_for_the_best_discriminator() -> None:
    """Published: equality if and only if h = q. Two steps of the proof drop terms that are not 0."""
    nothing = np.full((2, 2), 0.25)  # independent: I = 0, q = 1/2, and L_disc = 2 log 2 with K = 1
    best = posterior(nothing, independent(nothing), 1)
    assert mutual_information(nothing) == pytest.approx(0)
    assert bound(nothing, independent(nothing), best, 1) == pytest.approx(-2 * np.log(2))
    same = np.eye(10) / 10  # t is s: I = log 10; with K = 9, q = 10 / 19 for equal pairs and 0 for others
    best = posterior(same, independent(same), 9)
    assert mutual_information(same) == pytest.approx(np.log(10))
    assert bound(same, independent(same), best, 9) == pytest.approx(
        np.log(9) + np.log(10 / 19) + 9 * 0.1 * np.log(9 / 19)
    )


@pytest.mark.parametrize("seed", range(5))
def test_the_bound_holds_if_the_other_pairs_are_of_other_classes(seed: int) -> None:
    """As in training: one observation of each other class, K = C - 1; all classes are equally frequent."""
    drawn, classes = np.random.default_rng(seed), 5
    s, t = drawn.dirichlet(np.full(6, 0.3), (2, classes))  # (classes, values)
    p = s.T @ t / classes
    apart = (np.outer(s.sum(0), t.sum(0)) - s.T @ t) / (classes * (classes - 1))
    best = posterior(p, apart, classes - 1)
    found = bound(p, apart, best, classes - 1)
    assert found <= mutual_information(p)
    for h in drawn.uniform(0.01, 0.99, (50, *p.shape)):
        assert bound(p, apart, h, classes - 1) <= found


# --- Table 2 of Berdoz 2022


def test_distributions_can_differ_in_nine_ways() -> None:
    """Of 16 patterns, those with equal p(x) and p(y|x), or equal p(y) and p(x|y), leave nothing that differs."""
    patterns = product((False, True), repeat=4)  # whether p(x), p(y|x), p(y) and p(x|y) differ
    possible = {each for each in patterns if any(each[:2]) and any(each[2:])}
    cases = [heterogeneity_case(*how) for how in CASES.values()]
    assert {(c.inputs, c.labels_given_inputs, c.labels, c.inputs_given_labels) for c in cases} == possible
    assert len(possible) == len(cases) == 9


# --- Equations 1 and 2 of Ma et al. 2020


def covariance(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """(columns of a, columns of b)"""
    found: np.ndarray = (a - a.mean(0)).T @ (b - b.mean(0)) / len(a)
    return found


def test_equation_1_of_two_stage_is_not_the_distance_covariance() -> None:
    """Published: DCOV = n² Tr(Cov(X) Cov(z)). Four points of which z says nothing about x: 0 against 16."""
    x, z = np.array([[-1.0], [-1.0], [1.0], [1.0]]), np.array([[-1.0], [1.0], [-1.0], [1.0]])
    assert 4**2 * np.trace(covariance(x, x) @ covariance(z, z)) == pytest.approx(16)
    assert float(distance_correlation(torch.tensor(x), torch.tensor(z))) == pytest.approx(0, abs=1e-6)


def test_inequality_2_of_two_stage_has_a_counterexample() -> None:
    """Published: Tr(Cov(X) Cov(z)) >= det(Cov_zX) det(Cov_Xz). With z = X and covariance 2 I: 8 against 16."""
    x = np.array([[2.0, 0.0], [-2.0, 0.0], [0.0, 2.0], [0.0, -2.0]])
    both = covariance(x, x)
    np.testing.assert_allclose(both, 2 * np.eye(2))
    assert np.trace(both @ both) == pytest.approx(8)
    assert np.linalg.det(both) * np.linalg.det(both) == pytest.approx(16)


# --- totals of table 2 of Ma et al. 2020


def test_published_totals_of_fedavg_and_fedprox_grow_with_the_rounds() -> None:
    """2 n m N of table 1: the same model and as many devices, so the same values per round."""
    for rows in PUBLISHED_TABLE.values():
        (_, rounds, values), (_, others, theirs) = rows["fedavg"], rows["fedprox"]
        assert values / rounds == pytest.approx(theirs / others, rel=1e-3)


def test_published_shares_of_two_stage() -> None:
    """The text says about 10 %; the table has 19.7, 12.7 and 9.9 %."""
    shares = [100 * rows["two-stage"][2] / rows["fedavg"][2] for rows in PUBLISHED_TABLE.values()]
    assert shares == pytest.approx([19.7, 12.7, 9.9], abs=0.06)
