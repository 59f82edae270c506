"""The command line: helps, refusals, streams, colours; over a bookkeeping target."""

import io
import json
import signal
import sys
from dataclasses import fields

import pytest
import torch
import typer

from specfast import cli
from specfast.cli import console, options
from specfast.cli.generate import Printer
from specfast.cli.speculation import SpeculationOptions
from specfast.sampling_params import SamplingParams
from specfast.speculative_config import SpeculativeConfig
from tests.unit.toy_model import ToyModel, ToyTokenizer

TOY = ("toy", "--kv-cache-memory", 2**16)
COMMANDS = ["generate", "chat", "bench", "tune", "certify", "train", "info"]


class ChattyTokenizer(ToyTokenizer):
    """Messages become their text, so that a conversation repeats itself and drafts are found."""

    has_chat_template = True

    def chat_prompt(self, messages, add_generation_prompt=True):
        return "".join(m["content"] for m in messages) + ":"

    def encode_chat(self, messages):
        return self.encode(self.chat_prompt(messages), add_special_tokens=False)


@pytest.fixture
def toy(monkeypatch):
    """Every model name loads the bookkeeping target, whose law looks one token back."""
    loaded = []

    def load(model, dtype):
        loaded.append((model, dtype))
        return ToyModel(order=1), ChattyTokenizer()

    monkeypatch.setattr("specfast.llm.load", load)
    monkeypatch.setattr("specfast.models.loader.load", load)
    return loaded


@pytest.fixture
def run(capsys, monkeypatch):
    """-> (exit code, stdout, stderr) of a command line; what is typed is stdin."""

    def run(*arguments, typed=""):
        monkeypatch.setattr(sys, "stdin", io.StringIO(typed))
        code = cli.run([str(a) for a in arguments])
        return code, *capsys.readouterr()

    return run


@pytest.mark.parametrize("command", [[], *([c] for c in COMMANDS)], ids=str)
def test_every_help_runs(run, command):
    code, out, _ = run(*command, "--help")
    assert code == 0
    assert "--help" in out


def parameters():
    commands = typer.main.get_command(cli.app).commands
    assert sorted(commands) == sorted(COMMANDS)
    return [(name, p) for name, c in commands.items() for p in c.params if p.name != "help"]


@pytest.mark.parametrize(
    ("command", "parameter"), parameters(), ids=lambda p: getattr(p, "name", p)
)
def test_every_option_is_explained_with_its_default(command, parameter):
    assert parameter.help and parameter.help.rstrip().endswith((".", ").", "'."))
    if parameter.param_type_name == "option":
        says_default = isinstance(parameter.show_default, str) or parameter.default is not None
        assert parameter.show_default and says_default


def test_no_arguments_show_the_help(run):
    code, out, _ = run()
    assert code == 0
    assert "generate" in out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("generate", "Missing argument"),
        ("nonsense", "No such command"),
        ("generate toy x --nonsense", "No such option"),
        ("generate toy x --spec-method magic", "no method 'magic'; known are draft_model"),
        (
            "generate toy x --spec-method none --num-speculative-tokens 3",
            "--num-speculative-tokens does nothing with --spec-method none",
        ),
        (
            "generate toy x --spec-method none --prompt-lookup-max 3",
            "--prompt-lookup-max does noth",
        ),
        ("generate toy x --spec-method none --show-drafts", "--show-drafts does nothing"),
        ("generate toy x --json --show-drafts", "--show-drafts does nothing with --json"),
        ("generate toy x --speculative-config {", "is not JSON"),
        ("generate toy x --speculative-config {}", "at least 'method'"),
        (
            'generate toy x --speculative-config {"method":"ngram","tokens":1}',
            "unknown key 'tokens'",
        ),
        (
            'generate toy x --speculative-config {"method":"ngram"} --spec-method ngram',
            "--speculative-config or --spec-method, not both",
        ),
        (
            'chat toy --speculative-config {"method":"ngram"} --prompt-lookup-max 3',
            "--speculative-config or --prompt-lookup-max, not both",
        ),
        ("generate toy x --temperature -1", "temperature must lie in"),
        ("generate toy x --max-tokens 0", "max_tokens must be an integer of at least 1"),
        ("generate toy x --threads 0", "--threads must be at least 1"),
        ("generate toy x --dtype int4", "dtype must be one of"),
        ("bench toy --spec-method none", "bench compares speculation with none"),
        ("bench toy --cycles 0", "--cycles must be at least 1"),
        ("bench toy --num-prompts 0", "--num-prompts must be at least 1"),
        ("bench toy --temperature 1", "give --seed with --temperature"),
        ("bench toy --baseline vllm", "must be 'transformers', not 'vllm'"),
        ("bench toy --baseline transformers --ignore-eos", "leave out"),
        ("bench toy --categories poems", "no category 'poems'"),
        ("bench toy --dataset nowhere.jsonl", "no file nowhere.jsonl"),
        ("bench toy --json nowhere/r.json", "no folder nowhere"),
        ("bench toy --json .", ". is a folder; give a file"),
        ("certify toy --num-prompts 0", "--num-prompts must be at least 1"),
        ("certify toy --max-prompt-tokens 0", "--max-prompt-tokens must be at least 1"),
        ("certify toy --spec-method magic", "no method 'magic'"),
    ],
)
def test_users_errors_are_one_sentence_and_exit_code_2(run, toy, arguments, says):
    code, out, err = run(*arguments.split())
    assert (code, out) == (2, "")
    assert says in err
    assert err.startswith("Error: ") and err.count("\n") == 1, err
    assert "Traceback" not in err
    assert not toy, "refused only after loading a model"


def test_generate_streams_to_stdout_and_notes_to_stderr(run, toy):
    code, out, err = run("generate", *TOY, "abcabc", "--max-tokens", 8, "--ignore-eos")
    assert code == 0
    assert out.count("<") == 8 and out.endswith("\n")
    assert "8 tokens in" in err
    assert "\x1b" not in out + err


def test_speculation_changes_no_byte_of_stdout(run, toy):
    on = run("generate", *TOY, "abcabc", "--max-tokens", 60, "--ignore-eos")
    off = run(
        "generate", "toy", "abcabc", "--max-tokens", 60, "--ignore-eos", "--spec-method", "none"
    )
    assert on[1] == off[1]
    assert "drafts accepted" in on[2]
    assert "drafts accepted" not in off[2]


def test_json_is_one_object_a_prompt_and_nothing_else(run, toy):
    code, out, _ = run("generate", *TOY, "ab", "cd", "--max-tokens", 4, "-n", 2, "--json")
    rows = [json.loads(line) for line in out.splitlines()]
    assert code == 0
    assert [len(r["outputs"]) for r in rows] == [2, 2]
    assert rows[0]["metrics"]["seconds"] > 0
    assert rows[0]["metrics"]["max_kv_blocks"] > rows[0]["metrics"]["num_prefix_hit_tokens"] == 0


@pytest.mark.parametrize("temperature", [0, 1])
def test_lossy_verification_is_said(run, toy, temperature):
    config = '{"method": "ngram", "verification": "typical"}'
    arguments = ("generate", *TOY, "abcabc", "--max-tokens", 8, "--speculative-config", config)
    arguments = (*arguments, "--temperature", temperature)
    assert ("lossy" in run(*arguments)[2].splitlines()[-1]) == bool(temperature)
    assert json.loads(run(*arguments, "--json")[1])["lossless"] is not bool(temperature)
    plain = run("generate", *TOY, "abcabc", "--max-tokens", 8, "--json")
    assert json.loads(plain[1])["lossless"] is True


SYNTHETIC = ("--synthetic-acceptance", "0.9,0.5")
INVALID = "invalid text: acceptance is synthetic"


def test_invalid_text_is_marked(run, toy):
    arguments = ("abcabc", "--max-tokens", 20, "--ignore-eos", *SYNTHETIC)
    code, out, err = run("generate", "toy", *arguments)
    assert code == 0 and INVALID in err.splitlines()[-1] and INVALID not in out
    record = json.loads(run("generate", "toy", *arguments, "--json")[1])
    assert record["synthetic"] is True and record["lossless"] is False
    assert INVALID in run("chat", "toy", *arguments[1:], typed="abcabc\n")[2].splitlines()[-1]
    assert INVALID not in run("generate", *TOY, "abcabc", "--max-tokens", 8)[2]


@pytest.mark.parametrize(
    ("given", "taken"), [("0.8,0.6", (0.8, 0.6)), ("2.5", 2.5), ("1", 1.0), ("1,", (1.0,))]
)
def test_synthetic_acceptance_is_rates_or_a_length(given, taken):
    config = SpeculationOptions(synthetic_acceptance=given).config()
    assert config.synthetic_acceptance == taken


@pytest.mark.parametrize("given", ["much", "0.6,0.8", "0.5,-1", "99", ""])
def test_wrong_synthetic_acceptance_is_refused(run, toy, given):
    code, _, err = run("generate", "toy", "abc", "--synthetic-acceptance", given)
    assert code != 0 and "ynthetic" in err


@pytest.mark.parametrize("more", [(), ("--json",), ("cd",)], ids=str)
def test_a_chat_template_puts_the_special_tokens_itself(run, toy, monkeypatch, more):
    asked, encode = [], ChattyTokenizer.encode

    def spy(self, text, add_special_tokens=True):
        asked.append((text, add_special_tokens))
        return encode(self, text, add_special_tokens)

    monkeypatch.setattr(ChattyTokenizer, "encode", spy)
    assert run("generate", *TOY, "ab", *more, "--chat", "--max-tokens", 2)[0] == 0
    assert asked[0] == ("ab:", False) and not any(special for _, special in asked)


class BrokenModel(ToyModel):
    def logits(self, hidden, index):
        return super().logits(hidden, index) * float("nan")


@pytest.mark.parametrize("more", [(), ("--json",), ("cd",)], ids=str)
def test_a_model_that_fails_is_a_sentence_and_exit_code_1(run, monkeypatch, more):
    loaded = (BrokenModel(), ChattyTokenizer())
    monkeypatch.setattr("specfast.llm.load", lambda model, dtype: loaded)
    code, _, err = run("generate", *TOY, "ab", *more)
    assert code == 1 and "Error: The model's output is not a number here" in err
    code, _, err = run("chat", *TOY, typed="ab\n")
    assert code == 0 and "Error: The model's output is not a number here" in err


def test_prompt_from_stdin(run, toy):
    piped = run("generate", *TOY, "--max-tokens", 5, typed="abc")
    assert piped[1] == run("generate", *TOY, "abc", "--max-tokens", 5)[1]


def test_settings_that_do_nothing_are_warned_about(run, toy):
    _, _, err = run("generate", *TOY, "a", "--max-tokens", 2, "--seed", 1, "--top-p", 0.5)
    assert "--top-p, --seed does nothing at temperature 0" in err
    _, _, err = run("generate", *TOY, "a", "--max-tokens", 2, "--show-drafts")
    assert "not a colour terminal" in err


def coloured(monkeypatch, run, **environment):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    return run("generate", *TOY, "abcabc", "--max-tokens", 60, "--ignore-eos", "--show-drafts")[1]


def test_drafts_are_coloured_and_the_text_stays_the_same(monkeypatch, run, toy):
    plain = run("generate", *TOY, "abcabc", "--max-tokens", 60, "--ignore-eos")[1]
    out = coloured(monkeypatch, run)
    green, reset = "\x1b[32m", "\x1b[0m"
    assert out.count(green) == out.count(reset) > 0
    assert out.replace(green, "").replace(reset, "") == plain


def test_no_color_is_respected(monkeypatch, run, toy):
    assert "\x1b[32m" not in coloured(monkeypatch, run, NO_COLOR="1")


def test_chat_keeps_the_conversation_until_reset(run, toy):
    code, out, _ = run(
        "chat", "toy", "--max-tokens", 3, typed="abc\nabc\n/reset\nabc\n/exit\nabc\n"
    )
    first, second, third = out.splitlines()
    assert code == 0
    assert first == third
    assert second.count("<") == 3


def test_a_message_that_does_not_fit_is_left_out_of_the_chat(run, toy):
    typed = f"abc\n{'a' * 300}\n/reset\nabc\n"
    code, out, err = run("chat", "toy", "--max-tokens", 3, typed=typed)
    first, second = out.splitlines()
    assert code == 0 and first == second
    warnings = [line for line in err.splitlines() if line.startswith("Warning")]
    assert len(warnings) == 1 and "max_model_len" in warnings[0] and "/reset" in warnings[0]


def test_ctrl_c_stops_the_answer_and_not_the_chat(run, toy, monkeypatch):
    show, shown = Printer.show, []

    def interrupt(self, completion):
        show(self, completion)
        shown.append(len(completion.token_ids))
        if len(shown) == 2:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(Printer, "show", interrupt)
    before = signal.getsignal(signal.SIGINT)
    code, out, err = run(
        *("chat", "toy", "--max-tokens", 9, "--ignore-eos", "--spec-method", "none"),
        typed="abc\nabc\n",
    )
    first, second = out.splitlines()
    assert code == 0 and "Stopped" in err
    assert first.count("<") == 2 and second.count("<") == 9
    assert signal.getsignal(signal.SIGINT) is before


def test_certify_passes_on_a_sound_engine(run, toy, tmp_path):
    path = tmp_path / "c.json"
    code, out, err = run(
        *("certify", "toy", "--num-prompts", 8, "--max-prompt-tokens", 60, "--max-tokens", 40),
        *("--num-settings", 2, "--json", path),
    )
    result = json.loads(path.read_text())
    assert result["checked"] == result["identical"] == 16, out + err
    assert "16 of 16 answers are the same bytes." in out
    assert code == (1 if result["failures"] else 0)


def test_certify_says_what_it_never_saw_and_what_to_do(run, toy):
    code, out, _ = run(
        *("certify", "toy", "--num-prompts", 1, "--max-prompt-tokens", 8, "--max-tokens", 2),
        *("--num-settings", 1),
    )
    setting, total, failure = out.splitlines()
    assert code == 1
    assert setting.startswith("FAILED: 1/1") and "and never saw it" in setting
    assert total == "1 of 1 answers are the same bytes."
    assert "Give more or longer prompts" in failure


def test_certify_fails_with_the_first_difference(run, toy, monkeypatch):
    from specfast.scheduler import Scheduler

    commit = Scheduler._commit_tokens

    def wrong(self, seq, row, proposal, result):
        if proposal.lengths[row]:
            result.next_tokens[row] = 1
        return commit(self, seq, row, proposal, result)

    monkeypatch.setattr(Scheduler, "_commit_tokens", wrong)
    code, out, _ = run(
        *("certify", "toy", "--num-prompts", 4, "--max-prompt-tokens", 40, "--max-tokens", 40),
        *("--num-settings", 1),
    )
    assert code == 1
    assert "First difference: prompt" in out
    assert "two best tokens are" in out


def test_lists_may_have_spaces(run, toy):
    code, _, err = run("bench", "toy", "--categories", "prose, poems", "--cycles", 1)
    assert code == 2 and "no category 'poems'" in err
    _, _, err = run("certify", "toy", "--method", "ngram, magic")
    assert "no method 'magic'" in err


def test_a_file_that_cannot_be_read_is_a_sentence(run, toy, tmp_path):
    code, _, err = run("bench", "toy", "--dataset", tmp_path)
    assert code == 2 and err.count("\n") == 1
    (tmp_path / "latin1.jsonl").write_bytes(b'{"prompt": "caf\xe9"}\n')
    code, _, err = run("bench", "toy", "--dataset", tmp_path / "latin1.jsonl")
    assert code == 2 and "latin1.jsonl" in err and "UTF-8" in err


def test_a_closed_pipe_ends_quietly(run, toy, monkeypatch):
    def closed(text, style=None):
        raise BrokenPipeError

    monkeypatch.setattr("specfast.cli.generate.write", closed)
    monkeypatch.setattr("os.dup2", lambda *descriptors: None)
    code, out, err = run("generate", *TOY, "a", "--max-tokens", 4)
    assert (code, out, err) == (1, "", "")


def test_threads_are_set(run, toy):
    before = torch.get_num_threads()
    run("generate", *TOY, "a", "--max-tokens", 1, "--threads", 2)
    assert torch.get_num_threads() == 2
    torch.set_num_threads(before)


def test_no_two_options_of_a_command_share_a_name():
    for name in COMMANDS:
        names = [o for c, p in parameters() if c == name for o in p.opts]
        assert len(names) == len(set(names))


ARRIVING = {
    "--dtype": "float32", "--kv-cache-dtype": "bfloat16", "--max-model-len": 99,
    "--max-num-batched-tokens": 77, "--block-size": 8, "--kv-cache-memory": 12345,
}  # fmt: skip
SPECULATING = {"--num-speculative-tokens": 5, "--max-tree-nodes": 9, "--policy": "auto"}
DRAFTERS = [
    ("suffix", {}),
    ("ngram", {"--prompt-lookup-max": 3, "--prompt-lookup-min": 2}),
    ("draft_model", {"--spec-model": "small", "--draft-dtype": "bfloat16"}),
]


@pytest.mark.parametrize(
    ("method", "more"), DRAFTERS, ids=lambda v: v if isinstance(v, str) else ""
)
@pytest.mark.parametrize("command", ["generate", "chat"])
def test_every_option_arrives_at_the_engine(run, monkeypatch, command, method, more):
    def record(**values):
        seen.append(values)
        raise ValueError("seen")

    seen: list[dict] = []
    monkeypatch.setattr("specfast.llm.LLM", record)
    of_trees = {k: v for k, v in SPECULATING.items() if method != "ngram" or "tree" not in k}
    given = {"--spec-method": method, **ARRIVING, **of_trees, **more}
    batch = ["--max-num-seqs", 3] if command == "generate" else []
    run(command, "m", *(x for pair in given.items() for x in pair), *batch, "--no-prefix-caching")
    (values,) = seen
    config = values.pop("speculative_config")
    names = {name.removeprefix("--").replace("-", "_"): v for name, v in ARRIVING.items()}
    batch_size = 3 if batch else 1
    assert values == {
        "model": "m", "max_num_seqs": batch_size, "enable_prefix_caching": False, **names
    }  # fmt: skip
    drafts = {n.removeprefix("--").replace("-", "_"): v for n, v in (of_trees | more).items()}
    assert config == SpeculativeConfig(
        method, **{n.replace("spec_", ""): v for n, v in drafts.items()}
    )


def test_every_option_arrives_at_the_sampler():
    given = {
        "max_tokens": 7, "temperature": 0.5, "top_p": 0.4, "top_k": 3, "min_p": 0.2, "seed": 9,
        "stop": ["a", "b"], "ignore_eos": True,
    }  # fmt: skip
    assert given.keys() == {f.name for f in fields(options.SamplingOptions)}
    assert options.SamplingOptions(**given).params(n=2) == SamplingParams(n=2, **given)


def test_groups_become_options():
    def command(model: options.ModelOptions, other: int = 3) -> None:
        seen.append((model.model, model.block_size, other))

    seen: list[tuple] = []
    options.grouped(command)(
        **{**dict.fromkeys(options.ModelOptions.__dataclass_fields__), "model": "m"},
        other=5,
    )
    assert seen == [("m", None, 5)]


def test_a_long_measurement_says_how_far_it_is(capsys, monkeypatch):
    monkeypatch.setattr(console, "SECONDS_BETWEEN_LINES", 0)
    with console.measuring() as progress:
        progress.start(4)
        progress.advance()
    assert "1 of 4 answers" in capsys.readouterr().err
