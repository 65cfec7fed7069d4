"""The report: real fits, written out, read again as HTML, and opened in a real browser on a desk and on a phone."""

import html
import re
from html.parser import HTMLParser

import chromium
import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

from posterity import HMC, MAP, Categorical, DeepEnsemble, Gaussian, Laplace, Model, fit, metrics, mlp, plots
from posterity.metrics import Estimate
from posterity.posterior.posterior import Posterior
from posterity.report import Cell, Page, sections, write_report
from posterity.report.subject import Subject
from posterity.report.svg import HEAVY, inline_svg
from posterity.tables.comparison import Comparison, Entry

NASTY = "<script>alert('x')</script>"
DOLLARS = r"$\frac$ & \"q\" 水"
FEW = {"num_steps": 150, "learning_rate": 2e-2}
METHODS = {
    "map": MAP(**FEW),
    "deep_ensemble": DeepEnsemble(num_members=2, **FEW),
    "laplace": Laplace(start=MAP(**FEW)),
    "hmc": HMC(num_draws=12, num_burn_in=20, max_leapfrog=16),
}
SECTIONS = [
    "Verdict", "Scores on the test rows", "What they predict", "Noise and ignorance", "Calibration",
    "Answering only when sure", "Unfamiliar inputs", "Have the samplers arrived?", "Against HMC", "Receipts",
]  # fmt: skip

KINDS = ["several inputs", *(pytest.param(name, marks=pytest.mark.long) for name in ("one input", "classes"))]


def distances(prediction, reference):
    if prediction.kind == "classes":
        pair = prediction.probs, reference.probs
        return {"agreement": metrics.agreement(*pair), "total_variation": metrics.total_variation(*pair)}
    return {"wasserstein": metrics.wasserstein(prediction.sample(50), reference.sample(50))}


def compared(task, features, x, y, methods, holdout=None, **others):
    """A comparison by hand: two thirds of the rows to train on, the rest to test on."""
    cut = 2 * len(y) // 3
    likelihood = Gaussian(0.2) if task == "regression" else Categorical(2)
    model = Model(mlp((6,), activation="tanh"), likelihood)
    posteriors = {
        name: fit(model, METHODS[name], (x[:cut], y[:cut]), chains=2 if name == "hmc" else None, holdout=holdout)
        for name in methods
    }
    test, entries = (x[cut:], y[cut:]), []
    for name, posterior in posteriors.items():
        prediction = posterior.predict(test[0])
        judged = name != "hmc" and "hmc" in posteriors
        apart = distances(prediction, posteriors["hmc"].predict(test[0])) if judged else {}
        scores = metrics.evaluate(prediction, test[1])
        about = {"seconds": posterior.receipt.seconds, "diagnosis": posterior.diagnose(test[0])}
        entries.append(Entry(METHODS[name].card, posterior, prediction, scores, apart, **about))
    raw = pd.DataFrame(20 + 5 * test[0], columns=list(features))
    labels = () if task == "regression" else (NASTY, "other")
    trust = {"verdict": "usable", "r_hat": 1.05, "own_distance": {}} if "hmc" in posteriors else None
    return Comparison(
        task=task, features=tuple(features), labels=labels, train=(x[:cut], y[:cut]), test=test, frame=raw,
        entries=tuple(entries), settings={"seed": 0, "reference": trust}, **others,
    )  # fmt: skip


class Lazily(dict):
    """What each name stands for, made when it is first asked for."""

    def __init__(self, make):
        super().__init__()
        self.make = make

    def __missing__(self, name):
        self[name] = self.make(name)
        return self[name]


def make_comparison(name):
    rng = np.random.default_rng(0)
    line, plane = rng.uniform(-2, 2, (150, 1)), rng.normal(size=(150, 2))
    many = rng.normal(size=(150, 4))
    if name == "one input":
        wave = np.sin(2 * line[:, 0]) + 0.2 * rng.normal(size=150)
        methods, about = ("map", "laplace", "hmc"), {"title": "A wave", "target": "height"}
        return compared("regression", ["depth"], line, wave, methods, holdout=0.2, **about)
    if name == "several inputs":
        mixed = many[:, 0] - 0.5 * many[:, 1] ** 2 + 0.2 * rng.normal(size=150)
        about = {"title": NASTY, "target": DOLLARS, "failures": {"SWAG": NASTY}, "remarks": (NASTY,)}
        return compared("regression", ("a", NASTY, DOLLARS, "d"), many, mixed, ("map", "deep_ensemble"), **about)
    classes = (plane[:, 0] + plane[:, 1] ** 2 + 0.3 * rng.normal(size=150) > 0.8).astype(int)
    methods, about = ("deep_ensemble", "hmc"), {"title": "Two kinds", "target": "kind"}
    return compared("classification", ["width", "height"], plane, classes, methods, **about)


@pytest.fixture(scope="module")
def comparisons():
    return Lazily(make_comparison)


@pytest.fixture(scope="module")
def reports(comparisons, tmp_path_factory):
    folder = tmp_path_factory.mktemp("reports")
    return Lazily(lambda name: write_report(comparisons[name], folder / "new" / f"{name}.html"))


@pytest.fixture(scope="module")
def browser():
    if chromium.find() is None:
        pytest.skip("no Chromium on this machine: apt-get install chromium, or set CHROMIUM to where it is")
    with chromium.Browser() as found:
        yield found


class Reader(HTMLParser):
    """Tags, ids and headings of a page, as a browser would find them."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.ids, self.headings, self.text, self.open = [], [], [], "", []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self.ids += [value for name, value in attrs if name == "id"]
        self.open.append(tag)
        if tag in ("h1", "h2"):
            self.headings.append("")

    def handle_data(self, data):
        self.text += data
        if self.open and self.open[-1] in ("h1", "h2"):
            self.headings[-1] += data

    def handle_endtag(self, tag):
        if tag in self.open:
            while self.open.pop() != tag:
                pass


LOOK = """(() => {
  const shown = element => { const box = element.getBoundingClientRect(); return [box.width, box.height, box.right] };
  const paper = getComputedStyle(document.body).backgroundColor;
  const word = document.querySelector('.panel svg text');
  return {
    width: innerWidth, scroll: document.documentElement.scrollWidth,
    pictures: [...document.querySelectorAll('.panel svg')].map(shown),
    letters: getComputedStyle(word).fill, height: word.getBoundingClientRect().height, paper,
    scripts: document.scripts.length, tables: [...document.querySelectorAll('.scroll')].map(shown),
  }
})()"""


def luminance(colour):
    parts = np.array([int(part) for part in re.findall(r"\d+", colour)[:3]]) / 255
    linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
    return linear @ [0.2126, 0.7152, 0.0722]


@pytest.mark.long
@pytest.mark.parametrize("name", ["one input", "several inputs", "classes"])
def test_smoke_the_report_in_a_browser(name, reports, browser):
    page = reports[name].read_text("utf-8")
    for width in (1280, 390):
        for dark in (False, True):
            visit = browser.visit(reports[name], LOOK, width=width, dark=dark)
            found = visit.found
            assert visit.problems == []
            assert [asked for asked in visit.requests if not asked.startswith("data:")] == [reports[name].as_uri()]
            assert found["width"] == width
            assert found["scroll"] <= width
            assert found["scripts"] == 0
            assert len(found["pictures"]) == page.count('<div class="panel">') > 10
            for across, down, right in found["pictures"]:
                assert across > 200
                assert down > 100
                assert right <= width
            assert all(right <= width for _, _, right in found["tables"])
            bright, dim = sorted((luminance(found["letters"]), luminance(found["paper"])))[::-1]
            assert (bright + 0.05) / (dim + 0.05) > 7
            assert (luminance(found["paper"]) < 0.1) == dark
            assert found["height"] > 9
    printed = browser.visit(reports[name], LOOK, width=800, dark=True, media="print").found
    assert luminance(printed["paper"]) > 0.9


def test_what_overflows_is_noticed(browser, tmp_path):
    page = Page("Wide").section("A", "x" * 400)
    path = page.write(tmp_path / "wide.html")
    assert browser.visit(path, "document.documentElement.scrollWidth", width=390).found <= 390
    path.write_text(page.html().replace("overflow-wrap: break-word", ""))
    assert browser.visit(path, "document.documentElement.scrollWidth", width=390).found > 390


@pytest.mark.parametrize("name", KINDS)
def test_the_page_is_whole_and_can_be_read_aloud(name, reports, comparisons):
    page = reports[name].read_text("utf-8")
    reader = Reader(page)
    of_chains = ("Have the samplers arrived?", "Against HMC")  # a section is there only if it has something to show
    sections = [one for one in SECTIONS if name != "several inputs" or one not in of_chains]
    assert reader.headings == [comparisons[name].title, *sections]
    assert page.index(">Verdict</h2>") < page.index("<table>") < page.index("<figure")
    assert ("html", {"lang": "en"}) in reader.tags
    assert len(reader.ids) == len(set(reader.ids))
    targets = [attrs["href"][1:] for _, attrs in reader.tags if attrs.get("href", "").startswith("#")]
    targets += re.findall(r"url\(#([^)]+)\)", page)
    assert set(targets) <= set(reader.ids)
    pictures = [attrs for tag, attrs in reader.tags if tag == "svg" and "swatch" not in attrs.get("class", "")]
    assert all(attrs["role"] == "img" and len(attrs["aria-label"]) > 20 for attrs in pictures)
    tags = [tag for tag, _ in reader.tags]
    assert tags.count("table") == tags.count("caption") >= 1
    assert tags.count("figure") == tags.count("figcaption") == page.count("<b>Look for:</b>") >= 8
    assert "http" not in page
    assert "src=" not in page
    assert len(page) < 2_000_000


def test_texts_of_the_user_stay_texts(reports):
    page = reports["several inputs"].read_text("utf-8")
    assert "<script" not in page
    text = Reader(page).text
    assert text.count(NASTY) >= 4  # title, failure, remark, axis
    assert DOLLARS in text


def test_axes_are_in_the_units_of_the_table(comparisons):
    subject = Subject(comparisons["one input"])
    depth = subject.input(0)
    assert depth.name == "depth"
    np.testing.assert_allclose(depth.raw([0.0, 1.0]), [20, 25], rtol=1e-5)
    low, high = subject.grid.min(), subject.grid.max()
    x = comparisons["one input"].train[0]
    assert low < x.min()
    assert high > x.max()
    assert 0 in Subject(comparisons["several inputs"]).telling_inputs


def test_the_report_judges_convergence_by_what_the_verdict_does(comparisons, monkeypatch):
    page, one = Page("T"), comparisons["one input"]
    monkeypatch.delattr(Posterior, "diagnose")
    sections.samplers(page, Subject(one))
    assert html.escape(str(one.entries[-1].diagnosis).splitlines()[0]) in page.html()


def test_a_comparison_in_which_all_failed_is_still_reported(comparisons, tmp_path):
    one = comparisons["one input"]
    failed = Comparison(
        "Nothing", "regression", "y", one.features, (), one.train, one.test, None, (), {"HMC": "It broke."}
    )
    page = write_report(failed, tmp_path / "failed.html").read_text("utf-8")
    assert "HMC: It broke." in page
    assert "<figure" not in page


def test_numbers_are_written_with_their_errors_and_the_best_is_marked():
    rows = [
        ("a", Cell(Estimate(0.5, 0.01), best=True), 1.0),
        ("<b>", Estimate(-1.25, float("nan")), "word"),
        ("c", Estimate(float("nan"), float("nan")), float("inf")),
        ("d", Estimate(0.68604926, 1e-9), 2),
    ]
    page = Page("T").section("S").table(("method", "score", "other"), rows, "All of it.").html()
    assert '<td class="number winner">0.500 <span class="error">± 0.010</span><span class="best"' in page
    assert '<span class="unseen"> best</span>' in page
    assert '<th scope="row">&lt;b&gt;</th><td class="number">\N{MINUS SIGN}1.25</td><td class="words">word</td>' in page
    assert "&ndash;" in page
    assert "∞" in page
    assert ">0.686</td>" in page


def test_a_page_is_made_of_sections(tmp_path):
    axes = Figure(layout="constrained").add_subplot()
    axes.plot([0, 1], [0, 1], "--", color=plots.PALETTE["blue"].light, label="a & b")
    page = Page("Title", "under it", "at the end")
    page.section("One", "First.", "Second.").points(["p"]).figure([axes, axes.figure], "Caption.", "a line.")
    page.section("Two").details("More", "1 < 2").words("Third.")
    text = page.write(tmp_path / "deep" / "page.html").read_text("utf-8")
    assert text.count('role="img"') == 2
    assert text.count("a &amp; b") == 1  # the key names it once for both
    assert 'style="stroke:var(--blue)" stroke-dasharray="5 3"' in text
    assert "<pre>1 &lt; 2</pre>" in text
    assert not list(tmp_path.glob("**/*.part"))
    reader = Reader(text)
    assert reader.headings == ["Title", "One", "Two"]
    assert len(reader.ids) == len(set(reader.ids)) > 4  # the same drawing twice, yet no id twice
    assert set(re.findall(r"url\(#([^)]+)\)", text)) <= set(reader.ids)


def test_heavy_pictures_become_small():
    rng = np.random.default_rng(0)
    axes = Figure(layout="constrained").add_subplot()
    (points,) = axes.plot(*rng.normal(size=(2, 20_000)), ".")
    drawn = inline_svg(axes.figure, "p", "many")
    assert len(drawn) < HEAVY
    assert 'class="heavy"' in drawn
    assert "<text" in drawn
    assert not points.get_rasterized()
    few = Figure(layout="constrained").add_subplot()
    few.plot([0, 1])
    assert "<image" not in inline_svg(few.figure, "p", "few")
