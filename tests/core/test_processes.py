"""Processes as users start them: forked, by joblib, in threads, without a home, optimised, with warnings as errors."""

import os
import subprocess
import sys
import textwrap

import numpy as np
import pytest

FIT = """
import numpy as np
from posterity import MAP, Gaussian, Model, fit, mlp

X = np.linspace(-1, 1, 20)[:, None]
MODEL = Model(mlp((2,)), Gaussian(0.3))

def mean(seed):
    posterior = fit(MODEL, MAP(num_steps=5), (X, X[:, 0]), seed=seed, progress=False)
    return float(posterior.predict(X).mean.sum())
"""


def run(code, folder, *options, begins="from fits import *\n", **environment):
    """What a script prints that has FIT beside it; it must end well, and soon."""
    (folder / "fits.py").write_text(FIT)
    (folder / "script.py").write_text(begins + textwrap.dedent(code))
    environment = {name: value for name, value in {**os.environ, **environment}.items() if value is not None}
    command = [sys.executable, *options, str(folder / "script.py")]
    done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    return done.stdout


FORKED = """
import multiprocessing, os, sys, warnings
warnings.simplefilter("ignore")  # JAX and Python warn of forks in the parent
posterior = fit(MODEL, MAP(num_steps=5), (X, X[:, 0]), store="run", progress=False)
import posterity
uses = {
    "fit": lambda: mean(0),
    "predict": lambda: posterior.predict(X),
    "load": lambda: posterity.load("run"),
    "resume": lambda: posterity.resume("run"),
}

def attempt(name, answers):
    try:
        uses[name]()
    except RuntimeError as error:
        answers.put((name, str(error)))

if __name__ == "__main__":
    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()
    for name in uses:
        child = context.Process(target=attempt, args=(name, answers))
        child.start()
        child.join(60)
        if child.is_alive():
            child.kill()
            sys.exit(f"{name} hangs in a forked child")
        print(*answers.get())
"""


def test_use_in_a_forked_child_is_refused_before_it_hangs(tmp_path):
    lines = run(FORKED, tmp_path).splitlines()
    assert [line.split()[0] for line in lines] == ["fit", "predict", "load", "resume"]
    assert all("was forked from one in which JAX was running" in line and "'spawn'" in line for line in lines)


def test_a_process_forked_before_jax_runs_may_use_it(tmp_path):
    """Importing starts no devices; building a model of `fits` does."""
    code = """
    import os
    import posterity
    if os.fork() == 0:
        from fits import mean
        mean(0)
        os._exit(7)
    assert os.waitstatus_to_exitcode(os.wait()[1]) == 7
    """
    run(code, tmp_path, begins="")


@pytest.mark.long
def test_joblib_and_threads_give_the_same_numbers(tmp_path):
    code = """
    if __name__ == "__main__":
        from joblib import Parallel, delayed
        for backend in ("loky", "threading"):
            found = Parallel(n_jobs=2, backend=backend)(delayed(mean)(seed) for seed in range(4))
            print(*found)
        print(*map(mean, range(4)))
    """
    processes, threads, alone = (np.array(line.split(), float) for line in run(code, tmp_path).splitlines())
    np.testing.assert_allclose(processes, alone, rtol=1e-5)
    np.testing.assert_allclose(threads, alone, rtol=1e-5)


COMMAND = """
import sys
from posterity.cli import app
try:
    app(["fit", "curve", "--method", "map", "--budget", "2", "--out", "fitted"])
except SystemExit as ended:
    sys.exit(ended.code)
"""


@pytest.mark.long
@pytest.mark.parametrize("options", [("-O",), ("-W", "error", "-W", "ignore::DeprecationWarning")], ids=["O", "W"])
def test_a_fit_runs_optimised_and_with_warnings_as_errors(options, tmp_path):
    run("print(mean(0))", tmp_path, *options)


@pytest.mark.long
@pytest.mark.parametrize("home", ["read-only", "none", "C"])
def test_the_command_runs_without_a_home_it_can_write_to(home, tmp_path):
    (tmp_path / "home").mkdir(mode=0o555)
    environments = {
        "read-only": {"HOME": "/proc", "XDG_CACHE_HOME": None},  # where root cannot write either
        "none": {"HOME": None, "XDG_CACHE_HOME": None},
        "C": {"LC_ALL": "C", "LANG": None, "XDG_CACHE_HOME": str(tmp_path / "cache")},
    }
    run(COMMAND, tmp_path, **environments[home])
    assert (tmp_path / "fitted" / "manifest.json").is_file()
