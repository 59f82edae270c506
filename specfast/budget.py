"""The only place that decides how far to speculate."""

from __future__ import annotations

from collections.abc import Sequence as Seqs

import numpy as np

from specfast.control.batch_gates import BatchGates
from specfast.control.cost_model import CostModel, DraftCost, StepLoad, load_of
from specfast.control.cost_profile import CostProfile
from specfast.control.decided import Decided
from specfast.control.depth_policy import (
    DepthPolicy,
    FixedDepth,
    MeasuredDepth,
    SimpleDepth,
    StepSeconds,
)
from specfast.control.gate import StepSpeed
from specfast.control.node_choice import NodeChoice
from specfast.control.step_clock import StepClock
from specfast.proposers.base import Proposal
from specfast.sequence import Batch, Sequence
from specfast.speculative_config import MAX_NODES, SpeculativeConfig

ALL_TIMED, TIMED_EVERY = 32, 16  # steps


class Budget:
    """plan() sets limits before anything is drafted; select() only trims what was proposed.

    Policy "fixed" drafts and keeps as much as is asked for, "simple" goes up and down with each
    request. With "auto" the whole batch is expected to emit most tokens a second: by the nodes
    kept (of drafts that are drawn: by the depths planned), and by a gate, which the others can have
    too. Limits by batch size come on top of all.
    """

    def __init__(self, config: SpeculativeConfig | None, num_sources: int = 1) -> None:
        self.depth = config.num_speculative_tokens if config else 0
        self.nodes = min(config.max_tree_nodes or self.depth, MAX_NODES) if config else 0
        self.cost, self._draft_cost = CostModel(), DraftCost()
        policy = config.policy if config else "fixed"
        gated = config is not None and "auto" in (policy, config.gate)
        # Where rows are chosen by their worth, a sequence is expected to have two.
        self._rows_a_sequence = 2 if policy == "auto" else self.depth + 1
        self.gates: BatchGates | None = None
        if gated:
            self.gates = BatchGates(self._rows_a_sequence, self.cost.profile.ridge_point)
        self._policy = _policy(config, self.depth)
        self._choice = NodeChoice(num_sources) if policy == "auto" else None
        self._schedule = config.schedule if config else None
        self._switched_off: set[int] = set()  # ids of sequences whose drafter failed
        self._clock = StepClock()
        self._num_timed = 0
        self._proposed = Proposal.empty(0)  # in the step that runs, before any node was left out

    @property
    def weighs_costs(self) -> bool:
        """Whether it decides by what steps take, and so had better know it from the start."""
        return self.gates is not None

    def know(self, profile: CostProfile) -> None:
        """What steps take here: to be told before the first one."""
        self.cost = CostModel(profile)
        self.gates = BatchGates(self._rows_a_sequence, profile.ridge_point)

    def plan(self, seqs: Seqs[Sequence]) -> np.ndarray:
        """-> [B, 2] int32: depth and nodes. Never deeper than a sequence may still emit, less the
        bonus.
        """
        self._clock.start()
        limits = np.zeros((len(seqs), 2), np.int32)
        asked = self._asked(seqs)
        if asked.any() and (self.gates is None or self.gates.let_draft(seqs)):
            depths = self._policy.depths(seqs, asked, self._step_seconds(seqs))
            limits[:, 0] = depths
            limits[:, 1] = np.maximum(self.nodes * depths // self.depth, depths)
        return limits

    def select(self, batch: Batch, proposal: Proposal) -> Proposal:
        """The nodes worth verifying, prefix-closed; of drafts that were drawn, all."""
        self._clock.drafted()
        self._proposed = proposal
        is_drawn = proposal.draft_laws is not None
        if self._choice is None or is_drawn or not (proposal.num_nodes and self.cost.is_known):
            return proposal
        return self._choice.best(batch, proposal, self.cost, self._clock.drafting)

    def observe(self, batch: Batch, proposal: Proposal, result: Decided) -> None:
        """Learns what the step took, and which drafts were accepted."""
        if batch.draft_limits.any():
            self._policy.observe(batch, proposal, result)
        if self._choice and proposal.num_nodes:
            self._choice.observe(batch, proposal, result)
        if self._times(batch):
            self._observe_time(batch, proposal, result)

    def switch_off(self, seq: Sequence) -> None:
        """Plans no drafts for this sequence any more."""
        self._switched_off.add(seq.seq_id)

    def release(self, seq: Sequence) -> None:
        """Forgets a finished sequence."""
        self._switched_off.discard(seq.seq_id)
        self._policy.release(seq)
        if self._choice:
            self._choice.release(seq)

    @property
    def calibration_error(self) -> float | None:
        """Of the survival that nodes are chosen by; None where none was calibrated."""
        return self._choice.calibration_error if self._choice else None

    def _asked(self, seqs: Seqs[Sequence]) -> np.ndarray:
        """[B] int32: depths by batch size, request and room left."""
        most = self._schedule.depth(len(seqs)) if self._schedule else self.depth
        depths = [min(self._requested_depth(s), most, s.num_remaining_tokens - 1) for s in seqs]
        return np.array(depths, np.int32).clip(min=0)

    def _requested_depth(self, seq: Sequence) -> int:
        override = seq.params.speculation
        if not override.enabled or seq.seq_id in self._switched_off:
            return 0
        k = override.num_speculative_tokens
        return self.depth if k is None else min(k, self.depth)

    def _step_seconds(self, seqs: Seqs[Sequence]) -> StepSeconds | None:
        """Of decoding steps of these sequences."""
        if not self.cost.is_known:
            return None
        num_seqs, context = len(seqs), sum(len(s.token_ids) for s in seqs)

        def seconds(depths: np.ndarray, added_rows: np.ndarray) -> np.ndarray:
            rows = num_seqs + added_rows
            load = StepLoad(rows, context, context / num_seqs * rows)
            return self.cost.seconds(load) + self._draft_cost.seconds(depths, num_seqs)

        return seconds

    def _times(self, batch: Batch) -> bool:
        """Whether to look at what this step took, one in which every sequence decoded: each at
        first, and while a gate may change; later some, for a look takes longer than it is worth.
        """
        if not (self.gates and len(batch) and batch.decides.all()):
            return False
        self._num_timed += 1
        if self._num_timed <= ALL_TIMED or self._num_timed % TIMED_EVERY == 0:
            return True
        return bool(batch.draft_limits.any()) and not self.gates.is_settled

    def _observe_time(self, batch: Batch, proposal: Proposal, result: Decided) -> None:
        num_drafting = int(np.count_nonzero(batch.draft_limits[:, 0]))
        seconds, drafting = self._clock.stop(was_drafting=num_drafting > 0)
        plain, computing = load_of(batch), seconds - drafting
        added = int(batch.contexts @ proposal.lengths.numpy())
        load = StepLoad(plain.rows + proposal.num_nodes, plain.context, plain.row_context + added)
        if (batch.num_tokens == 1).all():  # a prompt's rows have no logits but one
            self.cost.observe(load, computing)
        if not num_drafting:
            return
        depth = int(self._proposed.depths.max(initial=0))
        self._draft_cost.observe(depth, num_drafting, drafting)
        assert self.gates
        # By the share of this very step: the machine's speed of the moment cancels out.
        share = self.cost.share(plain, load) if proposal.num_nodes else 1.0
        num_emitted = len(batch) + int(result.num_accepted.numpy().sum())
        self.gates.saw(StepSpeed(num_emitted, seconds, len(batch), share * computing))


def _policy(config: SpeculativeConfig | None, depth: int) -> DepthPolicy:
    """By matching "auto" chooses among drafts when they are known, which tells more than depth."""
    if config and config.policy == "auto" and config.verification == "rejection":
        return MeasuredDepth(depth)
    return SimpleDepth(depth) if config and config.policy == "simple" else FixedDepth()
