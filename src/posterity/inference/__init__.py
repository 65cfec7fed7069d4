"""Inference: `fit`, and one file for each method."""

from posterity.inference import methods
from posterity.inference.engine.driver import fit
from posterity.inference.engine.resume import load, resume
from posterity.inference.engine.run import NonFiniteError
from posterity.inference.methods import *  # noqa: F403
from posterity.inference.methods.mc_dropout import dropout_relation
from posterity.inference.methods.method import Method

__all__ = ["Method", "NonFiniteError", "dropout_relation", "fit", "load", "resume"]
__all__ += methods.__all__
