"""Rounds of finding the mode and tuning the prior: they end where the evidence falls."""

import jax
import numpy as np
import pytest

from posterity import MAP, HeteroscedasticGaussian, Laplace, Model, Normal, fit, mlp, prior, resume


def few_rows():
    """A network that predicts its own noise, and few enough rows for it to fit them all."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, 6))
    mode = MAP(num_steps=600, learning_rate=0.03)
    model = Model(mlp((20,)), HeteroscedasticGaussian(), prior(Normal(0.0, 1.0), fan_in=True))
    return model, mode, (x, x[:, 0] + 0.5 * rng.normal(size=40))


def test_rounds_keep_the_last_before_the_evidence_falls():
    model, mode, rows = few_rows()
    twice = fit(model, Laplace(start=mode, tune="prior", num_rounds=2), rows)
    first, second = twice.facts["log_evidence_of_rounds"]
    assert second < first - 10  # or this tests nothing
    once = fit(model, Laplace(start=mode, tune="prior"), rows)
    assert twice.facts["log_evidence"] == once.facts["log_evidence"] == first
    assert twice.model.prior.scale == once.model.prior.scale
    jax.tree.map(np.testing.assert_array_equal, twice.family, once.family)


@pytest.mark.long
def test_rounds_that_were_cut_off_know_the_round_before(tmp_path, monkeypatch):
    model, mode, rows = few_rows()
    method = Laplace(start=mode, tune="prior", num_rounds=2)
    whole, finish = fit(model, method, rows), Laplace.finish

    def cut_off(self, *arguments):
        if self.num_rounds == 2:
            raise ArithmeticError("cut off")
        return finish(self, *arguments)

    monkeypatch.setattr(Laplace, "finish", cut_off)
    with pytest.raises(ArithmeticError):
        fit(model, method, rows, store=tmp_path / "run")
    monkeypatch.setattr(Laplace, "finish", finish)
    resumed = resume(tmp_path / "run")
    assert resumed.facts["log_evidence_of_rounds"] == whole.facts["log_evidence_of_rounds"]
    assert resumed.facts["log_evidence"] == whole.facts["log_evidence_of_rounds"][0]
    jax.tree.map(np.testing.assert_array_equal, resumed.family, whole.family)


def test_rounds_run_where_the_mode_is_sought_from_a_laplace_of_its_own(tmp_path):
    """Each round is a stage: none is left out because the start happens to be a mode found from another Laplace."""
    few = MAP(num_steps=20)
    begun = Laplace(start=few, newton=False)  # a step to the mode would count as another pass
    method = Laplace(start=MAP(num_steps=20, start=begun), newton=False, tune="prior", num_rounds=3)
    stages = method.stages()
    assert [type(stage).__name__ for stage in stages] == ["MAP", "Laplace"] * 4
    assert [stage.num_rounds for stage in stages[1::2]] == [1, 1, 2, 3]
    assert all(stage.stages() == stages[: number + 1] for number, stage in enumerate(stages))
    assert method.start.start.start is few  # the method is as it was made
    model, _, rows = few_rows()
    posterior = fit(model, method, rows, progress=False, store=tmp_path / "run")
    assert len(posterior.facts["log_evidence_of_rounds"]) == 3
    assert posterior.receipt.num_gradients == 4 * (20 + 1)


def test_rounds_from_a_posterior_seek_the_mode_by_map():
    model, _, rows = few_rows()
    start = fit(model, MAP(num_steps=5), rows, progress=False)
    stages = Laplace(start=start, tune="prior", num_rounds=2).stages()
    assert [type(stage).__name__ for stage in stages] == ["Laplace", "MAP", "Laplace"]
    assert stages[0].start is start
    assert stages[1] == MAP(start=stages[0])
