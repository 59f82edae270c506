"""EAGLE (Li et al., 2024 and 2025): a layer over the target's hidden states drafts a tree."""

from __future__ import annotations

from typing import ClassVar

from specfast.models.drafts import check_names_model
from specfast.models.eagle import load_eagle
from specfast.models.feature_draft import FeatureDraft
from specfast.proposers.feature_proposer import FeatureProposer
from specfast.proposers.target import Target
from specfast.speculative_config import SpeculativeConfig


class EagleProposer(FeatureProposer):
    """Heads of EAGLE-1, 2 and 3: which one it is, its tensors say."""

    options: ClassVar[frozenset[str]] = frozenset({"model", "draft_dtype", "max_tree_nodes"})

    def __init__(
        self, config: SpeculativeConfig, target: Target, draft: FeatureDraft | None = None
    ) -> None:
        """draft: a head at hand instead of config.model."""
        head = draft or load_eagle(
            check_names_model(config), target.model, config.draft_dtype or "auto"
        )
        super().__init__(config, target, head)
