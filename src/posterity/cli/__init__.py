"""The command `posterity`. Heavy modules are imported where a command needs them: `--help` answers at once."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from posterity import __version__
from posterity.cli.errors import BAD_INPUT, FAILED, INTERRUPTED, FailedError, InputError
from posterity.cli.output import say, say_error
from posterity.core.concern import ConvergenceWarning
from posterity.tables.defaults import DEFAULT_METHOD

if TYPE_CHECKING:
    from posterity.tables.reading import Reading


class PlainGroup(TyperGroup):
    """Commands whose errors are sentences with an exit code: 2 for what was given, 1 for what went wrong."""

    def invoke(self, ctx: Any) -> Any:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ConvergenceWarning)  # the command prints what a receipt warns of
                return super().invoke(ctx)
        except InputError as error:
            say_error(str(error))
            raise typer.Exit(BAD_INPUT) from None
        except BrokenPipeError:  # who read the output has gone, which typer takes as it should be
            raise
        except (FailedError, MemoryError, OSError) as error:
            say_error(str(error) or "Out of memory: use fewer rows, or fewer --methods.")
            raise typer.Exit(FAILED) from None
        except KeyboardInterrupt:
            say("Stopped.")
            raise typer.Exit(INTERRUPTED) from None


app = typer.Typer(
    cls=PlainGroup,
    help="Fit a network to a table by many Bayesian methods, and see which to believe.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_show_locals=False,
)


def _show_version(asked: bool) -> None:
    if asked:
        typer.echo(f"posterity {__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    del version  # its callback has answered


Target = Annotated[str | None, typer.Option(help="The column to predict.", show_default=False)]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Seed = Annotated[int, typer.Option(help="Of the split and of every method; the same one, the same result.", min=0)]
Budget = Annotated[
    str | None, typer.Option(help="Time to stay within: 90s, 2m, 1h. By default what it takes.", show_default=False)
]
TaskOption = Annotated[
    str | None,
    typer.Option("--task", help="regression or classification; by default as the target looks.", show_default=False),
]
Effort = Annotated[float, typer.Option(help="Scales every method's number of steps: 0.1 for a quick look.")]
Drop = Annotated[
    str | None, typer.Option("--drop", help="Columns to leave out, with commas between them.", show_default=False)
]
Numeric = Annotated[
    str | None, typer.Option("--numeric", help="Columns of numbers: other cells are missing.", show_default=False)
]
Category = Annotated[
    str | None, typer.Option("--category", help="Columns of categories, though they hold numbers.", show_default=False)
]
Missing = Annotated[
    str | None,
    typer.Option("--missing", help="Cells that stand for a missing value, such as 999,unknown.", show_default=False),
]
Folder = Annotated[Path, typer.Argument(metavar="DIR", help="A folder that `fit` or `compare` made.")]


def _reading(*given: str | None) -> Reading:
    """Options on columns, each of them names with commas between them, in the order of the fields."""
    from posterity.tables.reading import Reading

    return Reading(*(tuple(part.strip() for part in (names or "").split(",") if part.strip()) for names in given))


@app.command()
def compare(
    data: Annotated[
        str | None,
        typer.Argument(
            help="A CSV, Parquet or Excel file, or diabetes, iris, wine, breast_cancer, digits, curve.",
            show_default=False,
        ),
    ] = None,
    target: Target = None,
    methods: Annotated[
        str | None,
        typer.Option(
            help="Names with commas between them; see `posterity methods`.", show_default="those marked there"
        ),
    ] = None,
    budget: Budget = None,
    seed: Seed = 0,
    task: TaskOption = None,
    test_share: Annotated[float, typer.Option(help="Of the rows, to test on.")] = 0.2,
    effort: Effort = 1.0,
    drop: Drop = None,
    numeric: Numeric = None,
    category: Category = None,
    missing: Missing = None,
    out: Annotated[
        Path | None,
        typer.Option(help="A new folder for the report and every fit.", show_default="posterity-NAME"),
    ] = None,
    as_json: Json = False,
) -> None:
    """Fit many methods to one table, print how they compare, and write a report. Start here."""
    from posterity.cli.compare import Options, run_compare

    reading = _reading(drop, numeric, category, missing)
    run_compare(data, target, Options(methods, budget, seed, task, test_share, effort, reading), out, as_json)


@app.command()
def fit(
    data: Annotated[str, typer.Argument(help="A CSV, Parquet or Excel file, or a bundled name.")],
    target: Target = None,
    method: Annotated[str, typer.Option(help="One of `posterity methods`.")] = DEFAULT_METHOD,
    budget: Budget = None,
    seed: Seed = 0,
    task: TaskOption = None,
    effort: Effort = 1.0,
    drop: Drop = None,
    numeric: Numeric = None,
    category: Category = None,
    missing: Missing = None,
    out: Annotated[
        Path | None, typer.Option(help="A new folder for the fit.", show_default="posterity-NAME-METHOD")
    ] = None,
    as_json: Json = False,
) -> None:
    """Fit one method to a table and keep it in a folder."""
    from posterity.cli.fitting import run_fit

    run_fit(data, target, method, budget, seed, task, effort, out, as_json, _reading(drop, numeric, category, missing))


@app.command()
def predict(
    folder: Folder,
    data: Annotated[
        str, typer.Argument(help="New rows: a CSV, Parquet or Excel file with the columns that were fitted.")
    ],
    out: Annotated[
        Path | None,
        typer.Option(help="A .csv or .parquet file.", show_default="CSV on standard output"),
    ] = None,
    level: Annotated[float, typer.Option(help="Of the interval, or of the set of classes.")] = 0.9,
    calibrated: Annotated[
        bool, typer.Option("--calibrated", help="Add intervals or sets that hold their share by rows held out.")
    ] = False,
    safe_csv: Annotated[
        bool, typer.Option("--safe-csv", help="Put ' before texts that a spreadsheet would compute: = + - @ ...")
    ] = False,
    as_json: Json = False,
) -> None:
    """Predict new rows: mean, std, interval, noise, ignorance, and whether a row is strange."""
    from posterity.cli.fitting import run_predict

    run_predict(folder, data, out, level, as_json, safe_csv, calibrated)


@app.command()
def evaluate(
    folder: Folder,
    data: Annotated[str, typer.Argument(help="Rows with their targets, none of them trained on.")],
    by: Annotated[
        str | None, typer.Option(help="A column: how many targets intervals hold, by its groups.", show_default=False)
    ] = None,
    level: Annotated[float, typer.Option(help="Of these intervals, or sets of classes.")] = 0.9,
    as_json: Json = False,
) -> None:
    """Score a fit on rows whose targets are known."""
    from posterity.cli.fitting import run_evaluate

    run_evaluate(folder, data, as_json, by, level)


@app.command()
def explain(
    folder: Folder,
    data: Annotated[str, typer.Argument(help="Rows to explain: a CSV, Parquet or Excel file.")],
    rows: Annotated[int, typer.Option(help="How many of its rows, from the first on.", min=1)] = 10,
    out: Annotated[
        Path | None, typer.Option(help="A .csv or .parquet file for what every column adds.", show_default=False)
    ] = None,
    as_json: Json = False,
) -> None:
    """Why is it unsure? What each column adds to the mean, to the noise and to the ignorance."""
    from posterity.cli.explaining import run_explain

    run_explain(folder, data, rows, out, as_json)


@app.command()
def card(
    folder: Folder,
    out: Annotated[Path | None, typer.Option(help="A new .md file.", show_default="standard output")] = None,
) -> None:
    """One page on a fit, in Markdown: data, method, how far to trust it, limits."""
    from posterity.cli.explaining import run_card

    run_card(folder, out)


@app.command()
def audit(
    folder: Folder,
    reference: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="The fit to hold it against, usually HMC's.", show_default="hmc in the same comparison"
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Have the chains of a fit converged, and is it HMC's answer? Of a comparison, every fit is judged."""
    from posterity.cli.audit import run_audit

    run_audit(folder, reference, as_json)


@app.command()
def resume(folder: Folder, budget: Budget = None, as_json: Json = False) -> None:
    """Go on with a fit or a comparison that was stopped."""
    from posterity.cli.compare import resume_compare
    from posterity.cli.fitting import resume_fit
    from posterity.cli.folders import is_comparison

    (resume_compare if is_comparison(folder) else resume_fit)(folder, budget, as_json)


@app.command()
def methods(as_json: Json = False) -> None:
    """What each method is, and when to use it."""
    from posterity.cli.catalogue import run_methods

    run_methods(as_json)


@app.command()
def verify(
    method: Annotated[str, typer.Argument(help="One of `posterity methods`.")],
    seed: Annotated[int, typer.Option(help="Of fits and simulations.", min=0)] = 0,
    as_json: Json = False,
) -> None:
    """Check that a method does what it claims, on posteriors whose answers are known. About two minutes."""
    from posterity.cli.verify import run_verify

    run_verify(method, seed, as_json)


@app.command()
def demo(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Where the pictures go.")] = Path("posterity-demo"),
) -> None:
    """The ideas of the field in one report, on data made here."""
    from posterity.cli.cache import keep_compiled_programs
    from posterity.cli.folders import check_writable

    check_writable(folder)
    # Read when JAX starts its backend. A first tour compiles for longer than it runs: less optimisation takes a sixth
    # off the whole.
    os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=1")
    keep_compiled_programs()
    from posterity.cli.tour import run

    run(folder)


@app.command()
def reproduce(
    name: Annotated[
        str | None, typer.Argument(help="A study; without a name, all are listed.", show_default=False)
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="In two minutes: fewer rows, splits and steps.")] = False,
    tiny: Annotated[bool, typer.Option("--tiny", help="In seconds, to see that it works.")] = False,
    part: Annotated[
        str | None, typer.Option(help="One part alone, with results files of its own.", show_default=False)
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(help="The folder of the data files.", show_default="$POSTERITY_DATA, or ~/.cache/posterity"),
    ] = None,
    unchecked: Annotated[
        bool, typer.Option("--unchecked", help="Take data files of any edition, without a look at their checksums.")
    ] = False,
    out: Annotated[Path, typer.Option(help="A folder for the numbers, the table and the pictures.")] = Path("results"),
    as_json: Json = False,
) -> None:
    """Run a published experiment again, and put our numbers beside the paper's. Goes on where it was stopped."""
    from posterity.cli.reproduce import Request, run_reproduce

    if quick and tiny:
        raise InputError("--quick and --tiny are two sizes of the same run; give one.")
    size = "quick" if quick else "tiny" if tiny else "full"
    run_reproduce(name, Request(size, part, out, data, unchecked), as_json)


@app.command()
def study(
    name: Annotated[
        str | None, typer.Argument(help="A question; without a name, all are listed.", show_default=False)
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(help="A CSV or Parquet file, or a bundled name.", show_default="the study's own"),
    ] = None,
    target: Target = None,
    quick: Annotated[bool, typer.Option("--quick", help="In minutes: fewer splits, draws and settings.")] = False,
    out: Annotated[
        Path | None, typer.Option(help="A folder for the report.", show_default="posterity-study-NAME")
    ] = None,
    as_json: Json = False,
) -> None:
    """Answer a question about posteriors on your own data, with HMC as the referee. Goes on where it was stopped."""
    from posterity.cli.study import Request, run_study

    run_study(name, Request(data, target, "quick" if quick else "full", out), as_json)
