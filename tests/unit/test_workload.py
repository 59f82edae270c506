"""The built-in workload and the prompt formats."""

import json
import re
from collections import Counter

import pytest

from specfast.data import CHAT, COPY_HEAVY, Prompt, load_workload, select_prompts


def write(tmp_path, *lines):
    path = tmp_path / "mine.jsonl"
    path.write_text("\n".join(x if isinstance(x, str) else json.dumps(x) for x in lines) + "\n")
    return path


def test_built_in_is_large_and_varied_enough():
    prompts = load_workload()
    count = Counter(p.category for p in prompts)
    assert set(count) == {*COPY_HEAVY[:3], "prose"}
    assert min(count.values()) >= 7 and len(prompts) >= 28
    assert len({p.id for p in prompts}) == len(prompts)
    assert len({p.turns[0][:40] for p in prompts}) == len(prompts)


def test_built_in_passages_and_code_are_of_real_length():
    for p in load_workload():
        if p.category == "summarisation":
            assert 150 <= len(p.turns[0].split("\n\n", 1)[1].split()) <= 350, p.id
        if p.category == "code_editing":
            code = re.search(r"```\w+\n(.*?)```", p.turns[0], re.S)
            assert code and 20 <= code[1].count("\n") <= 50, p.id


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        (
            {"question_id": 7, "category": "rag", "turns": ["a", "b"]},
            Prompt("7", "rag", ("a", "b")),
        ),
        ({"turns": ["a"]}, Prompt("1", "mine", ("a",))),
        ({"prompt": "a", "source": "x"}, Prompt("1", "mine", ("a",))),
        ({"question": "a", "answer": "b"}, Prompt("1", "mine", ("a",))),
        (
            {"task_id": "E/0", "instruction": "do", "input": "x"},
            Prompt("E/0", "mine", ("do\n\nx",)),
        ),
        ({"instruction": "do", "input": ""}, Prompt("1", "mine", ("do",))),
        (
            {"id": "s", "instruction": "do", "instances": [{"input": "x"}]},
            Prompt("s", "mine", ("do\n\nx",)),
        ),
    ],
)
def test_formats(tmp_path, row, expected):
    assert load_workload(write(tmp_path, row)) == [expected]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("{", "not JSON"),
        ("[1]", "object"),
        ({"text": "a"}, "no prompt found"),
        ({"turns": "a"}, "list of strings"),
        ({"turns": []}, "not empty"),
        ({"turns": ["a", " "]}, "not empty"),
        ({"prompt": 3}, "must be text"),
        ({"instruction": None, "input": "x"}, "must be text"),
    ],
)
def test_errors_name_file_and_line(tmp_path, line, says):
    path = write(tmp_path, {"prompt": "fine"}, "", line)
    with pytest.raises(ValueError, match=says) as error:
        load_workload(path)
    assert str(error.value).startswith(f"{path}, line 3: ")


def test_line_separators_inside_a_prompt_do_not_split_it(tmp_path):
    path = tmp_path / "u.jsonl"
    path.write_text(json.dumps({"prompt": "a\u2028b\x85c"}, ensure_ascii=False), "utf-8")
    assert load_workload(path)[0].turns == ("a\u2028b\x85c",)


def test_missing_and_empty_file(tmp_path):
    with pytest.raises(ValueError, match="no file"):
        load_workload(tmp_path / "none.jsonl")
    with pytest.raises(ValueError, match="no prompts"):
        load_workload(write(tmp_path, ""))


def test_selection_takes_categories_in_turn():
    prompts = load_workload()
    few = select_prompts(prompts, num_prompts=6)
    assert Counter(p.category for p in few).most_common()[-1][1] == 1 and len(few) == 6
    assert [p for p in prompts if p in few] == few
    assert {p.category for p in select_prompts(prompts, ["copy_heavy"])} == set(COPY_HEAVY[:3])
    assert not set(CHAT) & set(COPY_HEAVY)
    assert {p.category for p in select_prompts(prompts, ["prose"])} == {"prose"}
    with pytest.raises(ValueError, match="no category 'poems'; .*prose"):
        select_prompts(prompts, ["poems"])
