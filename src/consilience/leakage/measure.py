"""Measure the leakage of a run: of layer outputs and of class means, at its first learners."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields

import torch

from consilience.evaluation.membership import Membership
from consilience.evaluation.reconstruction import Reconstruction
from consilience.functional.distance_correlation import corrected_distance_correlation, distance_correlation
from consilience.leakage.attacker import Attacker, MeansSimilarity, limit_threads, train_attacker
from consilience.leakage.class_means import (
    SAMPLES_PER_MEAN,
    SampleGroup,
    group_samples,
    groups_with_tests,
    membership_leakage,
)
from consilience.leakage.examined_learner import (
    ExaminedLearner,
    ExaminedSamples,
    default_layers,
    evenly_spaced,
    examine_learner,
    refuse_other_kinds,
    resolve_layers,
    select_learners,
)
from consilience.leakage.results import (
    DistanceCorrelation,
    LayerLeakage,
    LayerReconstruction,
    LeakageResult,
    LearnerStatistics,
    MeansLeakage,
    MeansReconstruction,
    MembershipLeakage,
)
from consilience.leakage.settings import LeakageSettings
from consilience.simulation.records.export import SavedRun

MAX_CORRELATED = 1000
"""Samples of a distance correlation, at most."""
OnProgress = Callable[[str, int, int], None]
"""Called with the next step, the number of learners that are done, and the number of learners."""


@dataclass(frozen=True, eq=False)
class LearnerMeasurement:
    """The leakage at one learner."""

    auxiliary_samples: int
    layers: Mapping[str, LayerMeasurement]
    class_means: Mapping[int | None, MeansMeasurement]
    pictures: Mapping[str, bytes]


@dataclass(frozen=True, eq=False)
class LayerMeasurement:
    """The leakage of a layer at one learner. Distance correlations are (samples, correlation, corrected)."""

    module: str
    output_size: int
    test_samples: tuple[int, float, float]
    own_samples: tuple[int, float, float]
    reconstruction: Reconstruction | None


@dataclass(frozen=True, eq=False)
class MeansMeasurement:
    """The leakage of means over a number of samples at one learner.

    count: the means of classes that have test samples. membership: the inference, and the advantage of chance.
    """

    count: int
    reconstruction: MeansSimilarity | None
    membership: tuple[Membership, float] | None


def measure_leakage(
    run: SavedRun, settings: LeakageSettings, on_progress: OnProgress
) -> tuple[LeakageResult, dict[str, bytes]]:
    """The leakage of a run, and pictures of its first learner by file name."""
    refuse_other_kinds(run.data, "leakage")
    who = select_learners(run, settings.learners)
    layers = settings.layers or default_layers(run, who)
    found = []
    for done, each in enumerate(who):
        on_progress(f"learner {each}", done, len(who))
        found.append(_measure_learner(run, each, layers, settings, with_pictures=done == 0))
    pictures = {f"{what}.png": content for what, content in found[0].pictures.items()}
    leakage = LeakageResult(
        round=run.round,
        seed=run.config.federation.seed,
        learners=tuple(who),
        auxiliary_samples=max(each.auxiliary_samples for each in found),
        attack_epochs=settings.epochs,
        layers=tuple(_combine_layer(layer, [each.layers[layer] for each in found]) for layer in found[0].layers),
        class_means=tuple(
            _combine_means(size, there)
            for size in SAMPLES_PER_MEAN
            if (there := [each.class_means[size] for each in found if size in each.class_means])
        ),
        pictures={what: f"{what}.png" for what in found[0].pictures},
    )
    return leakage, pictures


def _measure_learner(
    run: SavedRun, who: int, layers: Sequence[str], settings: LeakageSettings, with_pictures: bool
) -> LearnerMeasurement:
    modules = resolve_layers(run, who, layers)
    learner = examine_learner(run, who, list(modules.values()), settings.auxiliary, settings.device)
    seed = run.config.federation.seed
    with limit_threads(learner.own.images):
        has_images = learner.own.images is not None
        attacker = train_attacker(learner, list(modules.values()), settings.epochs, seed) if has_images else None
        groups = {
            size: group_samples(learner.own.targets, size, seed, who, learner.shared) for size in SAMPLES_PER_MEAN
        }
        return LearnerMeasurement(
            len(learner.auxiliary),
            {layer: _measure_layer(learner, module, attacker) for layer, module in modules.items()},
            {size: _measure_means(learner, some, attacker, seed) for size, some in groups.items() if some},
            _pictures(attacker, modules, groups) if attacker is not None and with_pictures else {},
        )


def _measure_means(
    learner: ExaminedLearner, groups: Sequence[SampleGroup], attacker: Attacker | None, seed: int
) -> MeansMeasurement:
    return MeansMeasurement(
        len(groups_with_tests(groups, learner.tests)),
        attacker.reconstruct_means(groups) if attacker is not None else None,
        membership_leakage(learner.own, learner.tests, groups, seed, learner.who),
    )


def _pictures(
    attacker: Attacker, modules: Mapping[str, str], groups: Mapping[int | None, Sequence[SampleGroup]]
) -> dict[str, bytes]:
    means = attacker.means_grid(groups)
    return {"layers": attacker.layers_grid(modules)} | ({} if means is None else {"means": means})


def _measure_layer(learner: ExaminedLearner, module: str, attacker: Attacker | None) -> LayerMeasurement:
    return LayerMeasurement(
        module,
        learner.own.outputs[module][0].numel(),
        _correlation(learner.tests, module),
        _correlation(learner.own, module),
        None if attacker is None else attacker.reconstruct_layer(module),
    )


def _correlation(samples: ExaminedSamples, module: str) -> tuple[int, float, float]:
    """Distance correlation of inputs and a layer's outputs: the number of samples, plain, corrected."""
    some = torch.from_numpy(evenly_spaced(len(samples), MAX_CORRELATED)).to(samples.raw.device)
    inputs, outputs = samples.raw[some], samples.outputs[module][some]
    plain, corrected = distance_correlation(inputs, outputs), corrected_distance_correlation(inputs, outputs)
    return len(some), float(plain), float(corrected)


# -- statistics over learners ------------------------------------------------------------------------------------------


def _combine_layer(name: str, each: Sequence[LayerMeasurement]) -> LayerLeakage:
    found = [one.reconstruction for one in each if one.reconstruction is not None]
    return LayerLeakage(
        name,
        each[0].module,
        each[0].output_size,
        _combine_correlations([one.test_samples for one in each]),
        _combine_correlations([one.own_samples for one in each]),
        LayerReconstruction(
            max(len(one.images) for one in found),
            ssim=LearnerStatistics.of([one.ssim for one in found]),
            psnr=LearnerStatistics.of([one.psnr for one in found]),
            baseline_ssim=LearnerStatistics.of([one.baseline_ssim for one in found]),
            baseline_psnr=LearnerStatistics.of([one.baseline_psnr for one in found]),
        )
        if found
        else None,
    )


def _combine_correlations(each: Sequence[tuple[int, float, float]]) -> DistanceCorrelation:
    samples, plain, corrected = zip(*each, strict=True)
    return DistanceCorrelation(max(samples), LearnerStatistics.of(plain), LearnerStatistics.of(corrected))


def _combine_means(samples_per_mean: int | None, each: Sequence[MeansMeasurement]) -> MeansLeakage:
    reconstructions = [one.reconstruction for one in each if one.reconstruction is not None]
    memberships = [one.membership for one in each if one.membership is not None]
    return MeansLeakage(
        samples_per_mean,
        sum(one.count for one in each),
        MeansReconstruction(
            **{
                metric.name: LearnerStatistics.of([getattr(one, metric.name) for one in reconstructions])
                for metric in fields(MeansSimilarity)
            }
        )
        if reconstructions
        else None,
        MembershipLeakage(
            auc=LearnerStatistics.of([inferred.auc for inferred, _ in memberships]),
            advantage=LearnerStatistics.of([inferred.advantage for inferred, _ in memberships]),
            chance_advantage=LearnerStatistics.of([chance for _, chance in memberships]),
        )
        if memberships
        else None,
    )
