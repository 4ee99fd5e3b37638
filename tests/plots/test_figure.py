"""A figure: exact pages, embedded fonts, the same bytes again, a manifest beside it, nothing global touched."""

import json
import subprocess
import sys

import matplotlib
import pytest

from flashevolve_lab.errors import SetupError
from flashevolve_lab.plots import Figure, Source


def draw(info, page):
    axes = page.add_subplot()
    axes.plot([0, 1], [0, info])
    axes.set_xlabel("seconds, $5 each, and $6")


class FakePlotly:
    def _repr_mimebundle_(self, include, exclude):
        return {"application/vnd.plotly.v1+json": {"data": []}}


@pytest.fixture
def figure():
    source = Source("score", (("demo", 17),), {"x": "tokens"})
    return Figure(1, lambda info: FakePlotly(), draw, source, height=2.0)


def test_a_pdf_has_the_exact_page_and_embeds_truetype_fonts_only(figure, tmp_path):
    written = figure.export(tmp_path / "deep" / "figure.pdf").read_bytes()
    assert b"/MediaBox [ 0 0 252 144 ]" in written
    assert b"/FontFile2" in written and b"/Type3" not in written


@pytest.mark.parametrize(("width", "inches"), [("column", 3.5), ("page", 7.16), (5, 5.0)])
def test_a_width_is_a_column_a_page_or_inches(figure, width, inches, tmp_path):
    figure.export(tmp_path / "figure.png", width=width, height=1.5)
    assert json.loads((tmp_path / "figure.png.json").read_text())["inches"] == [inches, 1.5]


@pytest.mark.parametrize("suffix", [".pdf", ".svg", ".png"])
def test_the_same_figure_is_the_same_file_byte_for_byte(figure, suffix, tmp_path):
    first, second = (figure.export(tmp_path / f"{name}{suffix}").read_bytes() for name in ("a", "b"))
    assert len(first) > 1_000 and first == second
    assert b"CreationDate" not in first and b"<dc:date>" not in first


def test_a_manifest_says_where_the_figure_came_from(figure, tmp_path):
    figure.export(tmp_path / "figure.svg")
    manifest = json.loads((tmp_path / "figure.svg.json").read_text())
    assert manifest.pop("flashevolve_lab")
    assert manifest == {
        "file": "figure.svg",
        "figure": "score",
        "parameters": {"x": "tokens"},
        "runs": [{"run": "demo", "seq": 17}],
        "inches": [3.5, 2.0],
    }


def test_an_unknown_suffix_is_refused_before_anything_is_written(figure, tmp_path):
    with pytest.raises(SetupError, match=r"ends in \.pdf, \.svg, \.png"):
        figure.export(tmp_path / "figure.jpg")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("width", ["wide", 0, -1.0, True, None])
def test_an_unknown_width_is_refused(figure, width, tmp_path):
    with pytest.raises(SetupError, match="expected 'column'"):
        figure.export(tmp_path / "figure.pdf", width=width)


def test_a_height_of_nothing_is_refused(figure, tmp_path):
    with pytest.raises(SetupError, match="height=0"):
        figure.export(tmp_path / "figure.pdf", height=0)


def test_drawing_ignores_the_users_style_and_leaves_it_alone(figure, tmp_path):
    plain = figure.export(tmp_path / "plain.png").read_bytes()
    with matplotlib.rc_context({"font.size": 20, "axes.facecolor": "red", "lines.linewidth": 9}):
        before = dict(matplotlib.rcParams)
        styled = figure.export(tmp_path / "styled.png").read_bytes()
        assert dict(matplotlib.rcParams) == before
    assert styled == plain


def test_a_notebook_shows_the_plotly_figure_and_a_terminal_a_line(figure):
    bundle = figure._repr_mimebundle_()
    assert bundle["application/vnd.plotly.v1+json"] == {"data": []}
    assert bundle["text/plain"] == "<Figure score of demo (entry 17); .export('figure.pdf') writes it>"


def test_importing_the_room_loads_no_plotting_package():
    code = "import sys, flashevolve_lab.plots; print({'plotly', 'matplotlib', 'numpy', 'pandas'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_printing_does_not_load_pyplot(tmp_path):
    code = (
        "import sys; from flashevolve_lab.plots import Figures; "
        f"Figures(lambda: [], 'r').score().export({str(tmp_path / 'figure.pdf')!r}); print('matplotlib.pyplot' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
