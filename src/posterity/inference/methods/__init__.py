"""The methods, one file each, and the table that names them."""

from posterity.inference.methods.bayes_by_backprop import BayesByBackprop
from posterity.inference.methods.exact import Exact
from posterity.inference.methods.hmc import HMC
from posterity.inference.methods.laplace import Laplace
from posterity.inference.methods.mc_dropout import MCDropout
from posterity.inference.methods.method import Method
from posterity.inference.methods.mile import MILE
from posterity.inference.methods.nuts import NUTS
from posterity.inference.methods.point import MAP, MLE, DeepEnsemble
from posterity.inference.methods.sgmcmc import SGHMC, SGLD, Cyclical
from posterity.inference.methods.swag import SWAG

METHODS: dict[str, type[Method]] = {
    "mle": MLE,
    "map": MAP,
    "mc_dropout": MCDropout,
    "bayes_by_backprop": BayesByBackprop,
    "deep_ensemble": DeepEnsemble,
    "laplace": Laplace,
    "swag": SWAG,
    "exact": Exact,
    "hmc": HMC,
    "nuts": NUTS,
    "sgld": SGLD,
    "sghmc": SGHMC,
    "cyclical": Cyclical,
    "mile": MILE,
}
