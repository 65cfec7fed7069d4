"""Scores against brute force on small tables of probabilities and covariances; the loop against a random choice."""

import itertools

import numpy as np
import pytest

from posterity import Exact, Gaussian, Model, Normal, acquire, active_learning, fit, linear
from posterity.uses import acquire as module

RNG = np.random.default_rng(0)
PROBS = RNG.dirichlet([0.4, 0.7, 1.0], size=(7, 9))  # 7 draws, 9 rows, 3 classes


def joint_information(probs, rows):
    """I[y_rows; w], summed over all labels of these rows."""
    num_classes = probs.shape[-1]
    total = 0.0
    for labels in itertools.product(range(num_classes), repeat=len(rows)):
        each = np.prod([probs[:, row, label] for row, label in zip(rows, labels, strict=True)], axis=0)
        total -= each.mean() * np.log(each.mean())
        total += (each * np.log(each)).mean()
    return total


def greedy(information, num_rows, k):
    chosen = []
    for _ in range(k):
        left = [row for row in range(num_rows) if row not in chosen]
        chosen.append(max(left, key=lambda row: information([*chosen, row])))
    return chosen


def test_bald_is_the_information_of_each_row():
    np.testing.assert_allclose(module.bald(PROBS), [joint_information(PROBS, [row]) for row in range(9)])


def test_batchbald_is_the_greedy_joint_information():
    found = module.batch_bald(PROBS, 4)
    assert found.index.tolist() == greedy(lambda rows: joint_information(PROBS, rows), 9, 4)
    np.testing.assert_allclose(found.score, [joint_information(PROBS, found.index[: i + 1]) for i in range(4)])


def test_sampled_labels_agree_with_all_of_them():
    exact = module.batch_bald(PROBS, 4)
    sampled = module.batch_bald(PROBS, 4, num_samples=3)  # the third step is the first that is not exact
    assert sampled.score[1] == pytest.approx(exact.score[1])
    chosen = exact.index[:2]
    given = module._sampled(np.random.default_rng(1), PROBS[:, chosen], 40_000)
    found = module._joint_entropies(given, PROBS, exact=False)
    conditional = module._entropy(PROBS).mean(0)
    for row in set(range(9)) - set(chosen.tolist()):
        wanted = joint_information(PROBS, [*chosen, row])
        assert found[row] - conditional[row] - conditional[chosen].sum() == pytest.approx(wanted, abs=0.02)


def test_a_copy_is_not_asked_for_twice():
    """Of rows that each stand twice, BALD takes both copies of the best and BatchBALD two different ones."""
    twice = np.concatenate([PROBS, PROBS], 1)
    best = module.bald(twice)
    by_bald = np.argsort(-best, kind="stable")[:2]
    assert by_bald[1] == by_bald[0] + 9
    assert len(set(module.batch_bald(twice, 3).index % 9)) == 3


def test_epig_is_the_information_between_two_labels():
    targets = RNG.dirichlet([0.5, 0.5, 0.5], size=(7, 4))
    both = np.concatenate([PROBS, targets], 1)
    wanted = np.zeros(9)
    for row in range(9):
        for target in range(9, 13):
            joint = np.einsum("sa,sb->ab", both[:, row], both[:, target]) / 7
            apart = np.outer(joint.sum(1), joint.sum(0))
            wanted[row] += (joint * np.log(joint / apart)).sum() / 4
    np.testing.assert_allclose(module.epig(PROBS, targets), wanted)


def test_blocks_of_candidates_change_nothing(monkeypatch):
    targets = RNG.dirichlet([0.5, 0.5, 0.5], size=(7, 4))
    whole = module.batch_bald(PROBS, 3), module.epig(PROBS, targets)
    monkeypatch.setattr(module, "BLOCK_VALUES", 40)
    parts = module.batch_bald(PROBS, 3), module.epig(PROBS, targets)
    np.testing.assert_array_equal(parts[0].index, whole[0].index)
    np.testing.assert_allclose(parts[0].score, whole[0].score)
    np.testing.assert_allclose(parts[1], whole[1])


MEANS, NOISE = RNG.normal(size=(12, 8)) @ RNG.normal(size=(8, 8)), RNG.uniform(0.1, 0.5, size=8)


def test_batchbald_of_numbers_is_the_greedy_log_determinant():
    covariance = np.cov(MEANS.T, bias=True)

    def information(rows):
        part = covariance[np.ix_(rows, rows)] + np.diag(NOISE[rows])
        return (np.linalg.slogdet(part)[1] - np.log(NOISE[rows]).sum()) / 2

    found = module.gaussian_batch_bald(MEANS, NOISE, 5)
    assert found.index.tolist() == greedy(information, 8, 5)
    np.testing.assert_allclose(found.score, [information(found.index[: i + 1]) for i in range(5)])


def test_epig_of_numbers_is_that_of_a_joint_gaussian():
    targets, noise = RNG.normal(size=(12, 3)) + MEANS[:, :3], np.array([0.2, 0.3, 0.4])
    covariance = np.cov(np.concatenate([MEANS, targets], 1).T, bias=True) + np.diag(np.r_[NOISE, noise])
    wanted = np.zeros(8)
    for row, target in itertools.product(range(8), range(8, 11)):
        part = covariance[np.ix_([row, target], [row, target])]
        wanted[row] += np.log(part[0, 0] * part[1, 1] / np.linalg.det(part)) / 6
    np.testing.assert_allclose(module.gaussian_epig(MEANS, NOISE, targets, noise), wanted)


@pytest.fixture(scope="module")
def line_fit(line):
    return fit(Model(linear(), Gaussian(0.3), Normal(0.0, 1.0)), Exact(), pytree(line, slice(0, 5)), progress=False)


def pytree(data, rows):
    return tuple(part[rows] for part in data)


def test_what_is_far_from_the_data_is_asked_for(line_fit):
    pool = np.array([[0.1, 0.1], [6.0, 0.0], [6.0, 0.1], [0.0, -6.0]])
    assert set(acquire(line_fit, pool, 2).index) == {1, 3} or set(acquire(line_fit, pool, 2).index) == {2, 3}
    for score in ("bald", "variance"):
        found = acquire(line_fit, pool, 4, score)
        assert found.index[-1] == 0
        assert (np.diff(found.score) <= 0).all()
    # Where predictions matter at one place, the row nearest to it tells most.
    assert acquire(line_fit, pool, 1, "epig", targets=np.array([[0.0, -5.0]])).index.tolist() == [3]
    assert sorted(acquire(line_fit, pool, 4, "random").index) == [0, 1, 2, 3]


def test_what_cannot_be_asked_is_refused(line_fit):
    pool = np.zeros((3, 2))
    with pytest.raises(ValueError, match="did you mean 'batchbald'"):
        acquire(line_fit, pool, 1, "batch_bald")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="the pool has 3 rows"):
        acquire(line_fit, pool, 4)
    with pytest.raises(ValueError, match="inputs at which predictions matter"):
        acquire(line_fit, pool, 1, "epig")
    with pytest.raises(ValueError, match="which only 'epig' looks at"):
        acquire(line_fit, pool, 1, "bald", targets=pool)
    with pytest.raises(ValueError, match="One draw has nothing to disagree with"):
        acquire(line_fit, pool, 1, num_draws=1)


def test_the_loop_asks_adds_and_beats_a_random_choice():
    """A line whose slope is seen at the few rows far out: to ask for these halves the error."""
    rng = np.random.default_rng(2)
    x = np.concatenate([rng.normal(scale=0.1, size=(190, 1)), rng.choice([-3.0, 3.0], size=(10, 1))])
    y = 1.5 * x[:, 0] + 0.5 * rng.normal(size=200)
    x_test = np.linspace(-3, 3, 50)[:, None]
    model, test = Model(linear(), Gaussian(0.5), Normal(0.0, 2.0)), (x_test, 1.5 * x_test[:, 0])
    curves = {
        score: active_learning(model, Exact(), (x, y), test, score=score, initial=2, k=3, num_rounds=1, seeds=range(3))
        for score in ("batchbald", "random")
    }
    asked = curves["batchbald"]
    assert asked.num_labels.tolist() == [2, 5]
    assert asked.values.shape == (3, 2)
    assert all(len(set(rows)) == 5 for rows in asked.asked)
    assert all((rows[2:] >= 190).mean() > 0.8 for rows in asked.asked)
    np.testing.assert_array_equal(asked.values[:, 0], curves["random"].values[:, 0])  # the same first choice
    assert asked.mean[-1] < curves["random"].mean[-1] / 2
    assert asked.labels_to(np.inf) == np.inf
    assert asked.labels_to(0.0) == 2
