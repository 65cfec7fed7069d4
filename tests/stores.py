"""Small runs, whole or cut off, and what tests do to their stores."""

import hashlib
import json

import jax
import numpy as np
import pytest

from posterity import (
    HMC,
    MAP,
    MILE,
    NUTS,
    SGHMC,
    SGLD,
    SWAG,
    BayesByBackprop,
    DeepEnsemble,
    Gaussian,
    GaussianLearnedNoise,
    Laplace,
    Model,
    Normal,
    fit,
    mlp,
    scale_mixture,
)
from posterity.inference.engine.checkpoint import Checkpoint

RNG = np.random.default_rng(0)
X = RNG.normal(size=(40, 2))
Y = np.sin(X[:, 0]) + 0.1 * RNG.normal(size=40)
MODEL = Model(mlp((4,)), GaussianLearnedNoise(0.2), {"*bias": Normal(0.0, 1.0), "*": scale_mixture()})
SIMPLE = Model(mlp((4,)), Gaussian(0.7), Normal(0.0, 1.0))
METHODS = {
    "sgld": SGLD(num_draws=1500, num_burn_in=300, batch_size=8),
    "hmc": HMC(
        num_draws=400, num_burn_in=100, step_size=0.02, trajectory_length=0.4, start=MAP(num_steps=300, batch_size=8)
    ),
    "map": MAP(num_steps=30_000, batch_size=8),
    "ensemble": DeepEnsemble(num_members=2, num_steps=30_000, batch_size=8),
    "bayes_by_backprop": BayesByBackprop(num_steps=20_000, batch_size=8),
    "swag": SWAG(num_steps=20_000, batch_size=8, start=MAP(num_steps=10_000, batch_size=8)),
    "sghmc": SGHMC(num_draws=1500, num_burn_in=3000, batch_size=8),
    "nuts": NUTS(num_draws=500, num_burn_in=300),
    "mile": MILE(num_draws=800, num_burn_in=2000, start=DeepEnsemble(num_members=2, num_steps=10_000, batch_size=8)),
    "laplace": Laplace(tune="prior", num_rounds=3, start=MAP(num_steps=10_000, batch_size=8)),
}


def same(a, b):
    leaves = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return all(np.array_equal(left, right) for left, right in leaves)


def cut_off(folder, model, method, steps, **settings):
    """Begin a run, and stop it without warning at the first save after so many steps."""
    save = Checkpoint.save

    def save_then_stop(self, *arguments):
        saved = save(self, *arguments)
        if self.writer.folder == folder and self.progress.num_steps > steps:
            raise InterruptedError
        return saved

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Checkpoint, "save", save_then_stop)
        patch.setattr("posterity.inference.engine.checkpoint.SAVE_SECONDS", 0.0)
        patch.setattr("posterity.inference.engine.run.SEGMENT_SECONDS", 0.01)
        with pytest.raises(InterruptedError):
            fit(model, method, (X, Y), store=folder, progress=False, **settings)
    return folder


def rewrite(folder, change):
    """Change the body of a manifest in place, and sign it together with all files as they are."""
    whole = json.loads((folder / "manifest.json").read_bytes())
    body = json.loads(whole["body"])
    change(body)
    body["files"] = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.glob("*.safetensors")}
    text = json.dumps(body, sort_keys=True)
    checksum = hashlib.sha256(text.encode()).hexdigest()
    (folder / "manifest.json").write_text(json.dumps({"checksum": checksum, "body": text}))
