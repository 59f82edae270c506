"""The target's hidden states along its answers, whether they were kept or not."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from torch import Tensor

from specfast.config import EngineConfig
from specfast.engine import Engine
from specfast.kv_cache import fitting
from specfast.models.decoder import Model
from specfast.sampling_params import SamplingParams
from specfast.tokenizer import Tokenizer
from specfast.train.data import Answer, Recorder
from specfast.train.features import FeatureRequest, FeatureStore


class FeatureSource:
    """Of the answers in one folder. What no store holds is computed by the target's engine, to the
    same bytes, and stored while there is room.
    """

    def __init__(
        self, model: Model, tokenizer: Tokenizer, wanted: FeatureRequest, folder: Path
    ) -> None:
        self.layers = wanted.layers
        self.num_computed = 0
        self._target = model, tokenizer
        self._stores = wanted.stores(folder)
        self._engine: Engine | None = None

    def of(self, answers: Sequence[Answer]) -> list[Tensor]:
        """bfloat16 [tokens - 1, layers hidden] each: row i is what the layers saw of token i."""
        missing = [a for a in answers if self._store_of(a) is None]
        computed = dict(zip((a.index for a in missing), self._compute(missing)))
        for index, features in computed.items():
            self._stores[0].add(index, features)
        return [computed[a.index] if a.index in computed else self._read(a) for a in answers]

    def _store_of(self, answer: Answer) -> FeatureStore | None:
        return next((s for s in self._stores if s.has(answer.index)), None)

    def _read(self, answer: Answer) -> Tensor:
        store = self._store_of(answer)
        assert store
        return store.get(answer.index, self.layers)

    def _compute(self, answers: Sequence[Answer]) -> list[Tensor]:
        """All texts but their last tokens as prompts, batched."""
        if not answers:
            return []
        engine = self._engine = self._engine or self._new_engine()
        recorder, params = engine.proposer, SamplingParams(temperature=0.0, max_tokens=1)
        assert isinstance(recorder, Recorder)
        requests = [engine.add_request(a.tokens[:-1].tolist(), params) for a in answers]
        while engine.has_unfinished:
            engine.step()
        self.num_computed += len(answers)
        return [recorder.take(request.seqs[0].seq_id).features for request in requests]

    def _new_engine(self) -> Engine:
        model, tokenizer = self._target
        config = EngineConfig("target", enable_prefix_caching=False)  # a hit has no hidden states
        config = fitting(config, model, model.config.max_position_embeddings)
        return Engine(model, tokenizer, config, Recorder(1, self.layers))
