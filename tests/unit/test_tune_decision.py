"""The deployment tree of tune, case by case; halves, candidates and memory."""

from __future__ import annotations

import json
import math

import pytest

from specfast.config import EngineConfig
from specfast.data import Prompt
from specfast.intervals import Interval
from specfast.llm import make_engine
from specfast.models.loader import head_folder, load
from specfast.speculative_config import SpeculativeConfig
from specfast.tune.candidates import (
    Candidate,
    TreeShape,
    candidates,
    default_names,
    num_blocks,
    with_trees,
)
from specfast.tune.decision import Option, Workload, copied_share, decide, gate_of
from specfast.tune.halves import halve
from specfast.tune.memory import Memory, memory_of

NAN = float("nan")
COPIES, WRITES = Workload(1, 0.1, 0.6), Workload(1, 0.1, 0.1)


def around(value, spread=0.05):
    return Interval(value, value - spread, value + spread)


def measured(method, fixed, auto=None, ratio=None):
    auto = fixed if auto is None else auto
    return Option(method, method, 4, around(fixed), around(auto), ratio or around(auto / fixed))


def test_a_large_batch_is_left_alone():
    found = decide(Workload(65, 0.1, 0.6), [measured("ngram", 2.0)])
    assert found.option is None
    assert "65 sequences" in found.reasons[0] and "2.00x" in found.reasons[0]
    assert decide(Workload(64, 0.1, 0.6), [measured("ngram", 2.0)]).option


def test_a_prefill_heavy_load_is_left_alone():
    found = decide(Workload(1, 0.75, 0.6), [measured("ngram", 2.0)])
    assert found.option is None
    assert "75%" in found.reasons[0] and "1.14x" in found.reasons[0], "1 / (0.75 + 0.25 / 2)"
    assert decide(Workload(1, 0.67, 0.6), [measured("ngram", 2.0)]).option is None
    assert decide(Workload(1, 0.66, 0.6), [measured("ngram", 2.0)]).option, "from two thirds on"


@pytest.mark.parametrize(
    "speedup", [around(1.04), Interval(1.5, NAN, NAN), Interval(NAN, NAN, NAN)]
)
def test_nothing_faster_beyond_doubt(speedup):
    option = Option("ngram", "ngram", 4, speedup, speedup, around(1.0))
    found = decide(COPIES, [option])
    assert found.option is None and "beyond doubt" in found.reasons[0]


@pytest.mark.parametrize(
    ("workload", "options", "chosen"),
    [
        (COPIES, {"eagle": 2.0, "ngram": 1.95, "draft_model": 1.96}, "ngram"),
        (COPIES, {"eagle": 2.0, "suffix": 1.5, "draft_model": 1.8}, "eagle"),
        (COPIES, {"ngram": 1.96, "suffix": 1.99}, "suffix"),
        (WRITES, {"ngram": 2.0, "draft_model": 1.95, "eagle": 1.99}, "draft_model"),
        (WRITES, {"eagle": 1.95, "mtp": 2.0, "medusa": 1.93}, "eagle"),
        (WRITES, {"mtp": 1.95, "recycle": 2.0}, "mtp"),
        (WRITES, {"ngram": 2.0, "eagle": 1.2}, "ngram"),
        (WRITES, {"theirs": 2.0, "recycle": 1.0}, "theirs"),
    ],
)
def test_the_first_of_those_that_tie(workload, options, chosen):
    found = decide(workload, [measured(method, value) for method, value in options.items()])
    assert found.option and found.option.name == chosen
    text = " ".join(found.reasons)
    assert f"{options[chosen]:.2f}x" in text and f"{workload.copied_share:.0%}" in text


def test_fixed_only_where_it_is_faster_beyond_doubt():
    doubtful = measured("ngram", 2.0, 1.97, Interval(0.985, 0.97, 1.01))
    clear = measured("ngram", 2.0, 1.8, Interval(0.9, 0.88, 0.92))
    unknown = measured("ngram", 2.0, 1.8, Interval(0.9, NAN, NAN))
    assert (doubtful.policy, clear.policy, unknown.policy) == ("auto", "fixed", "auto")
    assert clear.speedup.value == 2.0 and doubtful.speedup.value == 1.97
    assert "Fixed k = 4 is faster" in decide(COPIES, [clear]).reasons[-1]


@pytest.mark.parametrize(
    ("speedups", "gate"),
    [
        ({1: around(2.0)}, "auto"),
        ({1: around(2.0), 4: around(1.2)}, "auto"),
        ({1: around(2.0), 4: around(0.97)}, "auto"),  # its interval reaches 1
        ({1: around(2.0), 4: Interval(0.5, NAN, NAN)}, "auto"),
        ({16: around(0.8), 1: around(2.0), 4: around(1.2)}, {"max_batch_size": 4}),
        ({1: around(2.0), 4: around(0.97), 16: around(0.8)}, {"max_batch_size": 4}),
        ({1: around(2.0), 4: around(0.9), 16: around(1.2)}, {"max_batch_size": 1}),
        ({1: around(2.0), 4: around(0.9), 16: around(0.8)}, {"max_batch_size": 1}),
    ],
)
def test_the_gate_follows_from_the_sizes_measured(speedups, gate):
    found, why = gate_of(speedups)
    assert found == gate
    if gate == "auto":
        assert f"({', '.join(map(str, speedups))})" in why
    else:
        slower = min(s for s in speedups if speedups[s].high < 1)
        s = speedups[slower]
        assert f"above {gate['max_batch_size']} sequences" in why
        assert f"at {slower} it is slower" in why and f"{s.value:.2f}x ({s.low:.2f}" in why


def test_copied_share_by_hand():
    assert copied_share([1, 2, 3, 4, 5], [1, 2, 3, 4, 9]) == pytest.approx(1 / 5), "the 4"
    assert copied_share([1, 2, 3, 4], [5, 6, 7]) == 0.0
    assert copied_share([1, 2, 3], []) == 0.0


def prompts(**sizes):
    return [Prompt(f"{c}{i}", c, ("x",)) for c, n in sizes.items() for i in range(n)]


def test_halves_have_all_categories():
    first, second = halve(prompts(a=5, b=3, c=2))
    assert len(first) + len(second) == 10 and not {p.id for p in first} & {p.id for p in second}
    assert abs(len(first) - len(second)) <= 1
    for category, size in {"a": 5, "b": 3, "c": 2}.items():
        parts = [sum(p.category == category for p in half) for half in (first, second)]
        assert sum(parts) == size and abs(parts[0] - parts[1]) <= 1


def test_too_few_to_halve():
    with pytest.raises(ValueError, match="of the category 'b' there is one alone"):
        halve(prompts(a=4, b=1))


def test_candidates_by_name():
    retrieval = ["ngram", "suffix", "recycle"]
    carried = ["tiny-draft-m", "tiny-eagle", "tiny-medusa"]
    assert default_names("tiny") == [*retrieval, *carried, "mtp"], "its checkpoint has blocks"
    names = [*carried, "mtp", "ngram", "hybrid", "ngram"]
    assert [(c.method, c.model) for c in candidates(names, "tiny")] == [
        ("draft_model", "tiny-draft-m"),
        ("eagle", "tiny-eagle"),
        ("medusa", "tiny-medusa"),
        ("mtp", None),
        ("ngram", None),
        ("hybrid", "tiny-draft-m"),
    ]


def test_unknown_candidates_are_refused_with_those_known():
    with pytest.raises(
        ValueError, match="no candidate 'magic'; known are ngram, suffix, .*tiny-ea"
    ):
        candidates(["magic"], "tiny")
    with pytest.raises(ValueError, match="nothing to draft for tiny-draft-s by 'eagle'"):
        candidates(["eagle"], "tiny-draft-s")


def test_settings_are_a_config():
    values = Candidate("mine", "eagle", "folder").settings(4, "fixed", {"max_batch_size": 8})
    assert SpeculativeConfig.from_dict(json.loads(json.dumps(values))).model == "folder"
    assert "model" not in Candidate("ngram", "ngram").settings(4, "auto", "auto")


def test_what_can_branch_is_tried_with_a_tree_too():
    names = ["ngram", "recycle", "tiny-draft-m", "mtp"]
    found = with_trees(candidates(names, "tiny"), TreeShape(24, 8), "tiny")
    assert [c.name for c in found] == [
        *("ngram", "recycle", "recycle tree=24", "tiny-draft-m", "tiny-draft-m tree=24"),
        *("mtp", "mtp tree=24"),
    ]
    assert [c.config(8).max_tree_nodes for c in found[:3]] == [None, None, 24]
    assert found[4].model == "tiny-draft-m"


def test_several_mtp_blocks_draft_a_chain(monkeypatch):
    assert num_blocks("tiny") == 1 and num_blocks("tiny-draft-s") == 0
    monkeypatch.setattr("specfast.tune.candidates.num_blocks", lambda target: 2)
    (mtp,) = candidates(["mtp"], "tiny")
    assert with_trees([mtp], TreeShape(24, 8), "tiny") == [mtp]


def test_a_tree_keeps_its_proportions():
    tree = Candidate("recycle tree=24", "recycle", tree=TreeShape(24, 8))
    assert [tree.config(k).max_tree_nodes for k in (1, 2, 4, 8)] == [3, 6, 12, 24]
    assert tree.settings(4, "fixed", "auto")["max_tree_nodes"] == 12
    assert TreeShape(9, 8).nodes_at(4) == 4, "never fewer than it is deep"


def test_memory_by_hand():
    """A budget of 10 sequences of 4096 tokens of 100 bytes; a fifth goes to the draft's KV."""
    budget = 10 * 4096 * 100
    assert Memory(0, 25, 100, budget).num_sequences_given_up == pytest.approx(2.0)
    assert Memory(2 * 4096 * 100, 0, 100, budget).num_tokens_given_up == 2 * 4096
    assert Memory(2 * budget, 25, 100, budget).num_sequences_given_up == 10, "all of it"
    assert Memory(0, 0, 100, budget).num_tokens_given_up == 0


def test_memory_of_drafters():
    model, tokenizer = load("tiny")

    def memory(speculation):
        config = EngineConfig("tiny", num_blocks=8, speculative_config=speculation)
        return memory_of(make_engine(model, tokenizer, config), 2**20)

    fixed = {"num_speculative_tokens": 2, "policy": "fixed"}
    draft = memory(SpeculativeConfig("draft_model", model="tiny-draft-s", **fixed))
    own = load("tiny-draft-s")[0].weights
    weights = own.arena.nbytes + own.embedding.nbytes
    assert weights <= draft.weight_bytes <= 1.25 * weights, "and norms and a table of rotations"
    assert 0 < draft.kv_bytes_per_token < draft.target_bytes_per_token
    assert memory(SpeculativeConfig("ngram", **fixed)).weight_bytes == 0
    shapes = head_folder("tiny").checkpoint.shapes
    block = 2 * sum(math.prod(s) for name, s in shapes.items() if ".mtp_layers." in name)
    mtp = memory(SpeculativeConfig("mtp", **fixed))
    assert block <= mtp.weight_bytes <= 1.25 * block, "its embedding and head are the target's"
