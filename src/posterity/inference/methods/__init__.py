"""The methods, one file each, and the table that names them: an import and two words below add one."""

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
from posterity.inference.methods.smc import SMC
from posterity.inference.methods.swag import SWAG

__all__ = [
    "HMC",
    "MAP",
    "METHODS",
    "MILE",
    "MLE",
    "NUTS",
    "SGHMC",
    "SGLD",
    "SMC",
    "SWAG",
    "BayesByBackprop",
    "Cyclical",
    "DeepEnsemble",
    "Exact",
    "Laplace",
    "MCDropout",
]

# In the order of every list of them. A comparison ends with the reference: what the others leave of a budget is its.
METHODS: dict[str, type[Method]] = {
    method.card.name: method
    for method in (
        *(MLE, MAP, MCDropout, BayesByBackprop, DeepEnsemble, Laplace, SWAG),
        *(Exact, SGLD, SGHMC, Cyclical, MILE, SMC, NUTS, HMC),
    )
}
