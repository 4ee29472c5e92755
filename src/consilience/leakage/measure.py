"""Examining a run: what layers' outputs and means of classes tell of the samples of its first learners."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from consilience.evaluation.membership import Membership
from consilience.evaluation.reconstruction import Inversion
from consilience.functional.distance_correlation import corrected_distance_correlation, distance_correlation
from consilience.leakage.class_means import N_AVG, Group, groups_of, measured, told_apart
from consilience.leakage.findings import Dependence, FromMeans, Layer, Leakage, Members, OfLearners, Rebuilt, Shared
from consilience.leakage.reconstruction import Attack, Likeness, attack, threads_for
from consilience.leakage.settings import Settings
from consilience.leakage.subject import Side, Subject, chosen, evenly, modules_of, subject, usual_layers
from consilience.simulation.records.export import SavedRun

MEASURED = 1000
"""Samples that a distance correlation is measured on, at most."""
Step = Callable[[str, int, int], None]
"""Is told what is done next, how many learners are done, and how many there are."""


@dataclass(frozen=True, eq=False)
class Measured:
    """What was found at one learner."""

    auxiliary: int
    layers: Mapping[str, OfLayer]
    shared: Mapping[int | None, OfMeans]
    pictures: Mapping[str, bytes]


@dataclass(frozen=True, eq=False)
class OfLayer:
    """Distance correlations are (samples, plain, corrected)."""

    module: str
    values: int
    tests: tuple[int, float, float]
    own: tuple[int, float, float]
    rebuilt: Inversion | None


@dataclass(frozen=True, eq=False)
class OfMeans:
    """Of means over some number of samples. members: how they are told, and the advantage by chance.

    count: means whose members can be told from test samples of the class.
    """

    count: int
    rebuilt: Likeness | None
    members: tuple[Membership, float] | None


def examine(kept: SavedRun, settings: Settings, step: Step) -> tuple[Leakage, dict[str, bytes]]:
    """What is found of a run, and pictures of its first learner by the names of their files."""
    who = chosen(kept, settings.learners)
    layers = settings.layers or usual_layers(kept, who)
    found = []
    for done, each in enumerate(who):
        step(f"learner {each}", done, len(who))
        found.append(_measured(kept, each, layers, settings, drawn=done == 0))
    pictures = {f"{what}.png": content for what, content in found[0].pictures.items()}
    leakage = Leakage(
        round=kept.round,
        seed=kept.config.seed,
        learners=tuple(who),
        auxiliary=max(each.auxiliary for each in found),
        epochs=settings.epochs,
        layers=tuple(_layer(layer, [each.layers[layer] for each in found]) for layer in found[0].layers),
        shared=tuple(
            _shared(n_avg, there)
            for n_avg in N_AVG
            if (there := [each.shared[n_avg] for each in found if n_avg in each.shared])
        ),
        pictures={what: f"{what}.png" for what in found[0].pictures},
    )
    return leakage, pictures


def _measured(kept: SavedRun, who: int, layers: Sequence[str], settings: Settings, drawn: bool) -> Measured:
    """All that is found at a learner; drawn: with pictures."""
    seed, modules = kept.config.seed, modules_of(kept, who, layers)
    seen = subject(kept, who, list(modules.values()), settings.auxiliary, settings.device)
    with threads_for(seen.own.images):
        return _of_subject(seen, modules, settings, seed, drawn)


def _of_subject(seen: Subject, modules: Mapping[str, str], settings: Settings, seed: int, drawn: bool) -> Measured:
    who = seen.who
    attacker = attack(seen, list(modules.values()), settings.epochs, seed) if seen.own.images is not None else None
    groups = {n_avg: groups_of(seen.own.targets, n_avg, seed, who, seen.shared) for n_avg in N_AVG}
    return Measured(
        len(seen.auxiliary),
        {layer: _of_layer(seen, module, attacker) for layer, module in modules.items()},
        {
            n_avg: OfMeans(
                len(measured(some, seen.tests)),
                attacker.means(some) if attacker is not None else None,
                told_apart(seen.own, seen.tests, some, seed, who),
            )
            for n_avg, some in groups.items()
            if some
        },
        _pictures(attacker, modules, groups) if attacker is not None and drawn else {},
    )


def _pictures(
    attacker: Attack, modules: Mapping[str, str], groups: Mapping[int | None, Sequence[Group]]
) -> dict[str, bytes]:
    means = attacker.means_grid(groups)
    return {"layers": attacker.layers_grid(modules)} | ({} if means is None else {"means": means})


def _of_layer(seen: Subject, module: str, attacker: Attack | None) -> OfLayer:
    return OfLayer(
        module,
        seen.own.outputs[module][0].numel(),
        _dependence(seen.tests, module),
        _dependence(seen.own, module),
        None if attacker is None else attacker.layer(module),
    )


def _dependence(side: Side, module: str) -> tuple[int, float, float]:
    """Distance correlations of inputs and a layer's outputs: how many samples, plain, corrected."""
    some = torch.from_numpy(evenly(len(side), MEASURED)).to(side.raw.device)
    inputs, outputs = side.raw[some], side.outputs[module][some]
    plain, corrected = distance_correlation(inputs, outputs), corrected_distance_correlation(inputs, outputs)
    return len(some), float(plain), float(corrected)


# -- learners together -------------------------------------------------------------------------------------------------


def _layer(name: str, each: Sequence[OfLayer]) -> Layer:
    rebuilt = [one.rebuilt for one in each if one.rebuilt is not None]
    return Layer(
        name,
        each[0].module,
        each[0].values,
        _correlations([one.tests for one in each]),
        _correlations([one.own for one in each]),
        Rebuilt(
            max(len(one.images) for one in rebuilt),
            ssim=OfLearners.of([one.ssim for one in rebuilt]),
            psnr=OfLearners.of([one.psnr for one in rebuilt]),
            guess_ssim=OfLearners.of([one.baseline_ssim for one in rebuilt]),
            guess_psnr=OfLearners.of([one.baseline_psnr for one in rebuilt]),
        )
        if rebuilt
        else None,
    )


def _correlations(each: Sequence[tuple[int, float, float]]) -> Dependence:
    samples, plain, corrected = zip(*each, strict=True)
    return Dependence(max(samples), OfLearners.of(plain), OfLearners.of(corrected))


def _shared(n_avg: int | None, each: Sequence[OfMeans]) -> Shared:
    rebuilt = [one.rebuilt for one in each if one.rebuilt is not None]
    members = [one.members for one in each if one.members is not None]
    return Shared(
        n_avg,
        sum(one.count for one in each),
        FromMeans(
            ssim_nearest=OfLearners.of([one.ssim_nearest for one in rebuilt]),
            ssim_mean=OfLearners.of([one.ssim_mean for one in rebuilt]),
            guess_ssim=OfLearners.of([one.guess_ssim for one in rebuilt]),
            psnr_nearest=OfLearners.of([one.psnr_nearest for one in rebuilt]),
            psnr_mean=OfLearners.of([one.psnr_mean for one in rebuilt]),
            guess_psnr=OfLearners.of([one.guess_psnr for one in rebuilt]),
        )
        if rebuilt
        else None,
        Members(
            auc=OfLearners.of([told.auc for told, _ in members]),
            advantage=OfLearners.of([told.advantage for told, _ in members]),
            by_chance=OfLearners.of([chance for _, chance in members]),
        )
        if members
        else None,
    )
