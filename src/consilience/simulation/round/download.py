"""Downloads: the answers of channels go to learners, their bytes are counted, and learners receive them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np

from consilience.channels import Answer, EntryPool
from consilience.simulation.engines.jobs import Job, Receive
from consilience.simulation.records.round_record import Record
from consilience.simulation.round.model_location import bring_models
from consilience.simulation.round.run_state import RunState
from consilience.simulation.round.usefulness import HeldOut, entry_losses, held_out_features
from consilience.simulation.stacked_channels import answer_stacked
from consilience.wire import schema

Fresh = list[dict[str, np.ndarray]]
"""New answers: for each cohort, by exchange, the number of an answer for every row, -1 where there is nothing new."""


def first_answers(run: RunState, names: Sequence[str]) -> None:
    """Learners hold what channels answer before any upload: zeros with count 0, or the common values at the start."""
    everybody = np.ones(run.setup.federations.shape, dtype=bool)
    wanted = [frozenset(learner.channels) for learner in run.learners]
    run.answers.hold(_fetch(run, names, everybody, wanted, catching_up=0))


def download_answers(run: RunState, names: Sequence[str], readers: np.ndarray, record: Record) -> Fresh:
    """Answers to readers, (federations, learners), of the exchanges due in this round; they hold them from now on."""
    wanted = [run.due(i) & learner.receiving for i, learner in enumerate(run.learners)]
    fresh = _fetch(run, names, readers, wanted, catching_up=0)
    return _count_and_hold(run, fresh, record)


def catch_up(run: RunState, readers: np.ndarray, record: Record) -> Fresh:
    """Answers for readers who did not take part in the last round: what channels have now."""
    names = tuple(dict.fromkeys(name for held in run.answers.held for name in held))
    fresh = _fetch(run, names, readers, [learner.receiving for learner in run.learners], catching_up=1)
    fresh = _count_and_hold(run, fresh, record)
    _keep_first_weights(run, fresh)
    return fresh


def receive(run: RunState, fresh: Fresh) -> None:
    """Let new answers change the models of those who have them."""
    jobs: list[Job] = []
    for i in range(len(run.learners)):
        new = {name: fresh[i][name] for name in run.changing(i)}
        if not new:
            continue
        changed = np.flatnonzero(np.any([numbers >= 0 for numbers in new.values()], axis=0))
        bring_models(run, i, changed)
        for rows in run.engine.split(Receive, i, changed):
            jobs.append(Receive(i, rows, {name: numbers[rows] for name, numbers in new.items()}))
    for _ in run.engine.run(jobs):
        pass


def _keep_first_weights(run: RunState, fresh: Fresh) -> None:
    """A learner that joins now starts with weights of its own, as all did, but where all start with the common ones."""
    for i, learner in enumerate(run.learners):
        joining = run.setup.federations.joins[run.at(i)[1]] == run.round
        for exchange in (e for e in learner.exchanges if e.start != "common"):
            fresh[i][exchange.name][joining] = -1


def _fetch(
    run: RunState, names: Sequence[str], readers: np.ndarray, wanted: Sequence[Collection[str]], catching_up: int
) -> Fresh:
    """Store the answers to readers; wanted: the exchanges of which each cohort gets answers."""
    fresh = run.answers.none_new()
    for name in names:
        receiving = [i for i, exchanges in enumerate(wanted) if name in exchanges]
        draws, held = _pool_draws(run, name), _useful_by(run, name)
        for draw in np.unique(draws[receiving]):
            cohorts = [i for i in receiving if draws[i] == draw]
            reads = (run.setup.cohorts.rows[cohorts] >= 0).any(axis=0) & readers
            readers_of = {f: np.flatnonzero(reads[f]) for f in np.flatnonzero(reads.any(axis=1)).tolist()}
            when, left = (run.round, catching_up), list(readers_of)
            found: list[tuple[Answer, dict[int, np.ndarray]]] = []
            if held is None and run.on_answer is None:
                found, left = answer_stacked(run.federations, name, readers_of, *when, draw=int(draw))
            for f in left:
                found.append(_answer_alone(run, f, name, readers_of[f], held, (*when, int(draw))))
            for batch, which in found:
                first = run.answers.add(batch)
                for f, place in which.items():
                    for i in cohorts:
                        rows = run.setup.cohorts.rows[i][f, readers_of[f]]
                        fresh[i][name][rows[rows >= 0]] = (first + place)[rows >= 0]
    return fresh


def _answer_alone(
    run: RunState,
    f: int,
    name: str,
    readers: np.ndarray,
    held: list[list[HeldOut]] | None,
    where: tuple[int, int, int],
) -> tuple[Answer, dict[int, np.ndarray]]:
    """One federation's answers to its readers, and which of them each gets; where: round, catching up, draw."""
    federation, (*when, draw) = run.federations[f], where
    losses = None if held is None else entry_losses(federation, name, readers, held[f], *when)
    sent = federation.answers(name, readers, *when, draw=draw, losses=losses)
    if run.on_answer is not None:
        sent = run.on_answer((f, name, *where), sent)
    return sent[0], {f: sent[1]}


def _useful_by(run: RunState, name: str) -> list[list[HeldOut]] | None:
    """The validation samples by which learners choose entries of a pool; None where they do not, or it has none."""
    chooses = run.setup.partners.choose == "useful"
    pools = [channel for each in run.federations if isinstance(channel := each.channels.get(name), EntryPool)]
    if not chooses or not any(pool.channel.scope == "everybody" and pool.present.any() for pool in pools):
        return None
    return held_out_features(run)


def _pool_draws(run: RunState, name: str) -> np.ndarray:
    """(cohorts,): how many entries of a pool each downloads at a time; 0 where the channel is no pool."""
    channels = [learner.channels.get(name) for learner in run.learners]
    return np.array([channel.draw if isinstance(channel, schema.Pool) else 0 for channel in channels])


def _count_and_hold(run: RunState, fresh: Fresh, record: Record) -> Fresh:
    """Count the bytes of new answers, and let learners hold them; a moving mean that has not moved sends nothing."""
    for i, new in enumerate(fresh):
        moved = _missed_replies(run, i, new)
        for name, replies in moved.items():  # an old answer must not undo local work
            new[name][replies <= 0] = -1
        if run.setup.partners.peer_to_peer:  # messages are counted by link
            continue
        size, values = _sizes(run, i, new, moved)
        record["bytes.down"][run.at(i)] += size
        record["values.down"][run.at(i)] += values
    run.answers.hold(fresh)
    return fresh


def _missed_replies(run: RunState, cohort: int, new: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """How many replies of each moving mean the rows do not have yet; 0 where they download nothing."""
    missed = {}
    for name, numbers in new.items():
        if run.learners[cohort].channels[name].moves and (numbers >= 0).any():
            before = run.answers.versions(run.answers.held[cohort][name])
            missed[name] = np.where(numbers >= 0, run.answers.versions(numbers) - before, 0)
    return missed


def _sizes(run: RunState, cohort: int, new: Mapping[str, np.ndarray], missed: Mapping[str, np.ndarray]) -> np.ndarray:
    """Bytes and numbers each row downloads, (2, rows): one sum for all rows that download the same."""
    names = list(new)
    columns = [numbers >= 0 for numbers in new.values()] + list(missed.values())
    if not columns:
        return np.zeros((2, len(run.engine.plans[cohort].members)))
    kinds, of = np.unique(np.stack(columns, axis=1), axis=0, return_inverse=True)
    count, sizes = run.byte_counts[cohort], []
    for kind in kinds.tolist():
        some = [name for name, present in zip(names, kind, strict=False) if present]
        replies = dict(zip(missed, kind[len(names) :], strict=True))
        sizes.append((count.down(some, replies), count.values("down", some, replies)))
    return np.array(sizes)[of.reshape(-1)].T
