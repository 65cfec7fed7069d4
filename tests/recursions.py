"""The laws of SG-MCMC recursions on the linear-Gaussian target, in closed form."""

import numpy as np
import targets

GAUSSIAN = targets.linear_gaussian()
NUM_DATA = 4


def law(case, rate, momentum=0.0):
    """Mean and stationary covariance of (a, b) in closed form, as the module's docstring has it."""
    mean, covariance = targets.gaussian_moments(GAUSSIAN, *case)
    precision = np.linalg.inv(covariance)
    return mean, np.linalg.inv(precision @ (np.eye(2) - rate / NUM_DATA * precision / (2 * (1 + momentum))))


def moments(draws, mean):
    """(estimate, Monte Carlo error) [5] of the mean and the second moments about `mean`: a, b, aa, ab, bb."""
    a, b = (np.asarray(draws[name], float) - centre for name, centre in zip("ab", mean, strict=True))
    values = np.stack([a, b, a * a, a * b, b * b])
    size = values.shape[2] // targets.NUM_BATCHES
    batches = values[:, :, : size * targets.NUM_BATCHES].reshape(5, -1, size).mean(-1)
    return batches.mean(1), batches.std(1, ddof=1) / np.sqrt(batches.shape[1])


def check_law(draws, mean, covariance):
    """Within four Monte Carlo errors, which must be small themselves; returns the deviations."""
    estimate, error = moments(draws, mean)
    exact = np.array([0, 0, covariance[0, 0], covariance[0, 1], covariance[1, 1]])
    scores = (estimate - exact) / error
    assert (abs(scores) < 4).all(), f"standard errors from the truth: {np.round(scores, 1)}"
    assert (error[:2] < 0.05 * np.sqrt(np.diag(covariance))).all(), "too large an error to judge"
    assert (error[[2, 4]] < 0.04 * np.diag(covariance)).all(), "too large an error to judge"
    return scores


def rate_at(share, case, momentum=0.0):
    """The learning rate at this share of the largest at which the stiffest direction is stable."""
    _, covariance = targets.gaussian_moments(GAUSSIAN, *case)
    return float(share * 2 * (1 + momentum) * NUM_DATA * np.linalg.eigvalsh(covariance)[0])


def laws(rates, noises, momentum, case):
    """Mean and covariance of (a, b) after each step of the recursion, from the start of all chains."""
    mean, covariance = targets.gaussian_moments(GAUSSIAN, *case)
    precision, one = np.linalg.inv(covariance), np.eye(2)
    centre, spread = np.concatenate([[0.0, 0.1] - mean, np.zeros(2)]), np.zeros((4, 4))  # of (w, m)
    for rate, noise in zip(rates, noises, strict=True):
        eta = rate / NUM_DATA
        root = np.sqrt(eta)
        step = np.block([[one - eta * precision, root * momentum * one], [-root * precision, momentum * one]])
        kick = np.kron([root, 1.0], one).T  # of xi on (w, m)
        centre, spread = step @ centre, step @ spread @ step.T + 2 * (1 - momentum) * noise * kick @ kick.T
        yield mean + centre[:2], spread[:2, :2]


def cyclical_moments(method, momentum, case, num_cycles):
    """Mean and covariance after so many cycles."""
    k = np.tile(np.arange(method.cycle_length), num_cycles)
    rates = method.base.learning_rate / 2 * (np.cos(np.pi * k / method.cycle_length) + 1)
    *_, last = laws(rates, k >= method.exploration * method.cycle_length, momentum, case)
    return last
