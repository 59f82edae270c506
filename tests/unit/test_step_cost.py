"""Step costs over a bookkeeping target: the rows are what they say, the context never runs out."""

from dataclasses import dataclass
from types import SimpleNamespace

import torch

from specfast.config import EngineConfig
from specfast.step_cost import Decoding, measure_step_cost
from tests.unit.toy_model import ToyConfig, ToyModel, ToyTokenizer


@dataclass(frozen=True)
class SmallConfig(ToyConfig):
    max_position_embeddings: int = 60


class CountingModel(ToyModel):
    """Notes the rows of each forward."""

    weights = SimpleNamespace(arena=torch.zeros(2**14))

    def __init__(self):
        super().__init__(SmallConfig())
        self.num_rows = []

    def forward(self, rows, kv_cache):
        self.num_rows.append(len(rows.token_ids))
        return super().forward(rows, kv_cache)


CONFIG = EngineConfig("toy", max_num_seqs=1)


def test_every_step_has_the_rows_it_is_named_by():
    model = CountingModel()
    decoding = Decoding(model, ToyTokenizer(), CONFIG, num_rows=5, context=20)
    for _ in range(200):
        decoding.prepare()
        model.num_rows.clear()
        decoding.step()
        assert model.num_rows == [5]


def test_costs_of_a_model_with_a_small_context():
    cost = measure_step_cost(CountingModel(), ToyTokenizer(), CONFIG, num_rounds=40)
    assert cost.context == 20
    assert cost.weight_bytes == 2**16
    assert cost.single_row_seconds > 0 and cost.read_bandwidth > 0
    assert cost.rows_ratio.low <= cost.rows_ratio.value <= cost.rows_ratio.high
    assert cost.bandwidth_share > 0
