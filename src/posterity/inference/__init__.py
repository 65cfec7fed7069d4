from posterity.inference.driver import fit
from posterity.inference.point import MAP, MLE, DeepEnsemble
from posterity.inference.mc_dropout import MCDropout
