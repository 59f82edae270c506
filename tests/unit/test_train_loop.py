"""The loop learns, and a killed run that goes on ends with the weights of one that was not."""

import pytest
import torch
from torch import nn

from specfast.train.loop import LoopSettings, train


class Toy(nn.Module):
    """A matrix for each optimiser."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.layers = nn.ModuleList([nn.Linear(8, 8, bias=False)])
        self.head = nn.Linear(8, 4)

    def loss(self, step):
        x = torch.randn(32, 8, generator=torch.Generator().manual_seed(step))
        wanted = x[:, :4].argmax(1)
        logits = self.head(torch.tanh(self.layers[0](x)))
        return nn.functional.cross_entropy(logits, wanted)


SETTINGS = LoopSettings(steps=60, learning_rate=0.02, warmup=5)


def run(checkpoint, settings=SETTINGS, identity=None, **options):
    toy, losses = Toy(), []

    def on_step(step, loss):
        losses.append(loss)
        if step == options.get("kill_at"):
            raise KeyboardInterrupt

    every = {"save_seconds": options.get("save_seconds", 60.0)}
    train(toy, toy.loss, settings, checkpoint, identity or {}, on_step, **every)
    return toy, losses


def test_the_loss_falls(tmp_path):
    _, losses = run(tmp_path / "run.pt")
    assert len(losses) == 60
    assert sum(losses[-5:]) < 0.5 * sum(losses[:5])


def test_a_killed_run_goes_on_as_if_it_had_not_been(tmp_path):
    whole, losses = run(tmp_path / "whole.pt")
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "cut.pt", kill_at=31, save_seconds=0.0)
    resumed, rest = run(tmp_path / "cut.pt")
    assert rest == losses[60 - len(rest) :]
    assert 0 < len(rest) < 60
    for name, parameter in whole.named_parameters():
        assert torch.equal(parameter, resumed.get_parameter(name)), name


def test_a_kill_while_saving_leaves_the_older_checkpoint(tmp_path, monkeypatch):
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "run.pt", kill_at=20, save_seconds=0.0)
    before = (tmp_path / "run.pt").read_bytes()

    def half(state, path):
        path.write_bytes(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr("specfast.train.loop.torch.save", half)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "run.pt", save_seconds=0.0)
    assert (tmp_path / "run.pt").read_bytes() == before


def test_a_finished_run_is_not_trained_again(tmp_path):
    whole, _ = run(tmp_path / "run.pt")
    again, losses = run(tmp_path / "run.pt")
    assert losses == []
    assert torch.equal(again.head.weight, whole.head.weight)


def test_a_checkpoint_of_another_run_is_refused(tmp_path):
    run(tmp_path / "run.pt", identity={"corpus": 1})
    with pytest.raises(ValueError, match="other settings \\(corpus\\)"):
        run(tmp_path / "run.pt", identity={"corpus": 2})
    with pytest.raises(ValueError, match="other settings \\(settings\\)"):
        run(tmp_path / "run.pt", LoopSettings(steps=61), identity={"corpus": 1})


def test_the_schedule_rises_stays_and_falls():
    settings = LoopSettings(steps=100, warmup=10, decay=0.4)
    factors = [settings.factor(step) for step in range(100)]
    assert factors[0] == 0.1 and factors[9] == 1.0 == factors[60]
    assert factors[80] == 0.5 and factors[99] == pytest.approx(0.025)


def test_a_loss_that_is_no_number_ends_the_run(tmp_path):
    toy = Toy()
    with pytest.raises(ValueError, match="lower the learning rate"):
        train(toy, lambda step: toy.loss(step) * float("nan"), SETTINGS, tmp_path / "run.pt", {})


@pytest.mark.parametrize("keep", [slice(0), slice(500), slice(-40)])
def test_a_broken_checkpoint_says_what_to_do(keep, tmp_path):
    path = tmp_path / "run.pt"
    run(path)
    path.write_bytes(path.read_bytes()[keep])
    with pytest.raises(ValueError, match="run.pt can't be read .*delete it"):
        run(path)
    for saved in ([1], {"step": 1}, {"identity": None}):
        torch.save(saved, path)
        with pytest.raises(ValueError, match="run.pt"):
            run(path)


def test_settings_out_of_range_are_refused():
    for name, values in {
        "steps": (0, -1, 1.5, "9"),
        "learning_rate": (0.0, -1.0, float("nan"), float("inf"), "1"),
    }.items():
        for value in values:
            with pytest.raises(ValueError, match=name):
                LoopSettings(**{"steps": 9, name: value})
