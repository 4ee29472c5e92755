"""A round, in the order in which data flows: local work, upload, aggregate, download, receive, evaluate, record.

Local work is a learner's part (`consilience.learner.session`), which the engine runs: local steps, one pass for
representations, contribute, encode. Every other step is one call here, into a module beside this one.
"""

from __future__ import annotations

import time
from collections import defaultdict
from itertools import chain

import numpy as np

from consilience.simulation.records.round_record import Record, share_wall_time
from consilience.simulation.round.choose_partners import record_partners
from consilience.simulation.round.download import catch_up, download_answers, first_answers, receive
from consilience.simulation.round.evaluate import evaluate_before_merging, evaluate_models
from consilience.simulation.round.link_bytes import record_link_bytes
from consilience.simulation.round.model_location import return_models
from consilience.simulation.round.newest_parts import with_newest_parts
from consilience.simulation.round.participation import Presence, draw_presence
from consilience.simulation.round.record import new_record, record_public_set, record_spent, record_work
from consilience.simulation.round.run_state import RunState
from consilience.simulation.round.scopes import set_scopes
from consilience.simulation.round.start import open_channels, start_learners
from consilience.simulation.round.subspaces import record_dimensions_sent, set_subspaces
from consilience.simulation.round.turns import take_turns
from consilience.simulation.round.upload import expect_uploads, spend, upload, within_budget
from consilience.simulation.round.work import do_local_work, uploads_due


class Rounds(RunState):
    """Plays the rounds of a run on an engine."""

    def start(self) -> Record:
        """Before the first round: initial weights, channels, and uploads of exchanges that need no training."""
        open_channels(self, start_learners(self))
        record = new_record(self)
        record_public_set(self, record, joined=1)
        first_answers(self, tuple(dict.fromkeys(name for learner in self.learners for name in learner.channels)))
        set_subspaces(self)
        everybody = np.ones(self.setup.federations.shape, dtype=bool)
        presence = Presence(everybody & self.setup.federations.joined(0), everybody)
        for role in self.setup.roles:
            self._run_role(role, presence, record, train=False)
        return_models(self)
        record_spent(self, record)
        return record

    def run(self, evaluate: bool) -> Record:
        """One whole round."""
        self.round += 1
        self._follow_schedules()
        presence = draw_presence(self.setup.federations, self.setup.method.host, self.round)
        record = new_record(self)
        if self.round > 1:
            record_public_set(self, record, joined=self.round)
        back = presence.exchanges & ~self.took_part
        if back.any() and not self.setup.partners.peer_to_peer:  # neighbors do not keep messages for others
            receive(self, catch_up(self, back, record))
        set_subspaces(self)
        record_dimensions_sent(self, presence, record)
        for role in self.setup.roles:
            self._run_role(role, presence, record, train=True, evaluate=evaluate)
        return_models(self)
        if evaluate:
            with with_newest_parts(self):
                evaluate_models(self, record)
        record_partners(self, record)
        record["participated"][:] = self.took_part = presence.participates
        record_spent(self, record)
        return record

    def _run_role(self, role: str, presence: Presence, record: Record, *, train: bool, evaluate: bool = False) -> None:
        """One role's part of a round. Without training, what is due before the first round."""
        started, spent = time.perf_counter(), defaultdict[str, float](float)
        due = uploads_due(self, role, train=train)
        names = tuple(dict.fromkeys(name for uploads in due.values() for name in uploads))
        if not train and not names:
            return
        uploading = within_budget(self, presence, train=train)
        expect_uploads(self, due, uploading, names)
        in_turn = [cohort for cohort in due if self.learners[cohort].role.turns is not None]
        at_once = {cohort: uploads for cohort, uploads in due.items() if cohort not in in_turn}
        work = [do_local_work(self, at_once, uploading, train=train, evaluate=evaluate)]
        work += [take_turns(self, cohort, presence, record) for cohort in in_turn]
        for job, result in chain.from_iterable(work):
            for phase, seconds in record_work(self, record, job, result).items():
                spent[phase] += seconds
            upload(self, job)
            spend(self, job)
        share_wall_time(time.perf_counter() - started, spent, record)
        started = time.perf_counter()
        record_link_bytes(self, record, due, set_scopes(self, presence))
        for federation in self.federations:
            federation.aggregate(names)
        if evaluate:
            began = time.perf_counter()
            evaluate_before_merging(self, record, due, presence.participates)
            evaluated = time.perf_counter() - began
            record["wall.evaluate"] += evaluated
            started += evaluated
        receive(self, download_answers(self, names, presence.exchanges, record))
        record["wall.exchange"] += time.perf_counter() - started

    def _follow_schedules(self) -> None:
        """Give settings that change with the rounds, such as a learning rate schedule, their values in this one."""
        for i, plan in enumerate(self.engine.plans):
            if plan.scheduled:
                self.engine.set_settings(i, plan.settings_at(self.round))
