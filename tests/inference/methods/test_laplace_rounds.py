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
