"""Posterity: any network, a prior and a likelihood, turned into a posterior over the weights.

model = Model(mlp((50, 50)), Gaussian(0.1), Normal(0.0, 1.0))
posterior = fit(model, Laplace(), (x, y), holdout=0.1)
prediction = posterior.predict(x_new)
prediction.mean, prediction.aleatoric, prediction.epistemic, prediction.ood
"""

import importlib
from typing import TYPE_CHECKING, Any

from numpyro.distributions import Normal

from posterity.core.devices import use_all_cores

use_all_cores()  # before anything can start the backend

from posterity.core.concern import ConvergenceWarning
from posterity.core.types import Network
from posterity.data.sources import LoaderError
from posterity.inference import NonFiniteError, dropout_relation, fit, load, methods, resume
from posterity.inference.engine.callbacks import CSVLog
from posterity.inference.engine.restarts import StuckError
from posterity.inference.methods import *  # noqa: F403
from posterity.metrics import evaluate
from posterity.metrics.information import cross_entropy, entropy, kl_divergence, self_information
from posterity.models.censored import Censored
from posterity.models.counts import NegativeBinomial, Poisson
from posterity.models.heads import Heads
from posterity.models.likelihoods import (
    Bernoulli,
    Categorical,
    Gaussian,
    GaussianLearnedNoise,
    HeteroscedasticGaussian,
    NoisyCategorical,
    StudentT,
    likelihood,
)
from posterity.models.model import Model
from posterity.models.ordinal import Ordinal
from posterity.models.priors import Fixed, Flat, prior, scale_mixture
from posterity.models.scales import Learned
from posterity.models.units import Rescaled
from posterity.networks import (
    cnn_lstm,
    from_equinox,
    from_function,
    from_nnx,
    from_torch,
    lenet,
    linear,
    mlp,
    resnet20,
    to_torch,
    unet,
)
from posterity.posterior.audit import Audit, audit
from posterity.posterior.diagnosis import Diagnosis
from posterity.posterior.posterior import Posterior, prior_predictive
from posterity.prediction.conformal import Conformal
from posterity.prediction.prediction import Prediction
from posterity.storage.codec import StoreError

if TYPE_CHECKING:
    from posterity.tables.estimators import BayesianClassifier, BayesianRegressor
    from posterity.tables.several import BayesianMultiRegressor
    from posterity.uses.acquire import acquire
    from posterity.uses.active import active_learning
    from posterity.uses.compare_models import compare_models
    from posterity.uses.continual import continual_learning, coreset
    from posterity.uses.decide import control_risk, decide
    from posterity.uses.verify import verify

__version__ = "0.1.0"

__all__ = [
    "Audit",
    "BayesianClassifier",
    "BayesianMultiRegressor",
    "BayesianRegressor",
    "Bernoulli",
    "CSVLog",
    "Categorical",
    "Censored",
    "Conformal",
    "ConvergenceWarning",
    "Diagnosis",
    "Fixed",
    "Flat",
    "Gaussian",
    "GaussianLearnedNoise",
    "Heads",
    "HeteroscedasticGaussian",
    "Learned",
    "LoaderError",
    "Model",
    "NegativeBinomial",
    "Network",
    "NoisyCategorical",
    "NonFiniteError",
    "Normal",
    "Ordinal",
    "Poisson",
    "Posterior",
    "Prediction",
    "Rescaled",
    "StoreError",
    "StuckError",
    "StudentT",
    "acquire",
    "active_learning",
    "audit",
    "cnn_lstm",
    "compare_models",
    "continual_learning",
    "control_risk",
    "coreset",
    "cross_entropy",
    "decide",
    "dropout_relation",
    "entropy",
    "evaluate",
    "fit",
    "from_equinox",
    "from_function",
    "from_nnx",
    "from_torch",
    "kl_divergence",
    "lenet",
    "likelihood",
    "linear",
    "load",
    "mlp",
    "prior",
    "prior_predictive",
    "resnet20",
    "resume",
    "scale_mixture",
    "self_information",
    "to_torch",
    "unet",
    "verify",
]
__all__ += methods.__all__


# Loaded when asked for: scikit-learn and pandas take a second to import.
_LATER = {
    **dict.fromkeys(("BayesianClassifier", "BayesianRegressor"), "posterity.tables.estimators"),
    "BayesianMultiRegressor": "posterity.tables.several",
    "acquire": "posterity.uses.acquire",
    "active_learning": "posterity.uses.active",
    "compare_models": "posterity.uses.compare_models",
    **dict.fromkeys(("continual_learning", "coreset"), "posterity.uses.continual"),
    **dict.fromkeys(("control_risk", "decide"), "posterity.uses.decide"),
    "verify": "posterity.uses.verify",
}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module 'posterity' has no attribute {name!r}")
    return getattr(importlib.import_module(_LATER[name]), name)
