"""A figure: an info, drawn by Plotly to look at and by matplotlib to print, exported with a manifest beside it.

Owns `Figure`, the page sizes and the print style. Owns no data and no particular figure. One rule a change must keep:
drawing changes nothing global (no pyplot, no rcParams), and the same info gives the same file, byte for byte.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from flashevolve_lab.errors import SetupError

if TYPE_CHECKING:
    import matplotlib.figure

Info = TypeVar("Info")

WIDTHS: Mapping[str, float] = {"column": 3.5, "page": 7.16}  # inches: a column and the page of a two-column paper
SUFFIXES = (".pdf", ".svg", ".png")
STYLE: Mapping[str, Any] = {
    "font.family": "DejaVu Sans",  # comes with matplotlib: the same on every machine
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.labelsize": 8,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "legend.fontsize": 8,
    "legend.frameon": False,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.major.size": 2.5,
    "ytick.major.size": 2.5,
    "hatch.linewidth": 0.5,
    "text.parse_math": False,
    "pdf.fonttype": 42,
    "svg.fonttype": "path",
    "svg.hashsalt": "flashevolve_lab",
    "savefig.dpi": 300,
}
UNDATED: Mapping[str, Mapping[str, Any]] = {"pdf": {"CreationDate": None}, "svg": {"Date": None}, "png": {}}


@dataclass(frozen=True, slots=True)
class Source:
    """Where a figure comes from: (run, number of its last log entry) each, the function that drew it, its parameters."""

    function: str
    runs: tuple[tuple[str, int], ...]
    parameters: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, repr=False)
class Figure(Generic[Info]):
    """An info and the two ways to draw it. Shows itself in a notebook; `export` writes it for a paper.

    Attributes:
        info: All that the figure shows.
        draw_plotly: Makes a ``plotly.graph_objects.Figure`` of it.
        draw_matplotlib: Draws it into an empty ``matplotlib.figure.Figure``.
        source: For the manifest.
        height: Inches, unless another height is asked for.
    """

    info: Info
    draw_plotly: Callable[[Info], Any]
    draw_matplotlib: Callable[[Info, matplotlib.figure.Figure], None]
    source: Source
    height: float = 2.4

    def __repr__(self) -> str:
        runs = ", ".join(f"{run} (entry {seq})" for run, seq in self.source.runs)
        return f"<Figure {self.source.function} of {runs or 'no run'}; .export('figure.pdf') writes it>"

    def plotly(self) -> Any:
        """The figure as a ``plotly.graph_objects.Figure``, to look at."""
        return self.draw_plotly(self.info)

    def matplotlib(self, width: str | float = "column", height: float | None = None) -> matplotlib.figure.Figure:
        """The figure as a ``matplotlib.figure.Figure``, to print; ``width`` as for `export`."""
        from matplotlib.figure import Figure as Page

        size = inches(width), _checked_height(self.height if height is None else height)
        with print_style():
            page = Page(figsize=size, layout="constrained")
            self.draw_matplotlib(self.info, page)
        return page

    def export(self, path: str | os.PathLike[str], *, width: str | float = "column", height: float | None = None) -> Path:
        """Write the figure, and ``<file>.json`` beside it: runs, log positions, function, parameters, version.

        Args:
            path: Ends in ``.pdf``, ``.svg`` or ``.png``; folders are made.
            width: ``"column"`` (3.5 in), ``"page"`` (7.16 in), or inches. The page is exactly that wide; text is 8 pt.
            height: Inches; by default what suits the figure.

        Returns:
            The path written.

        Raises:
            SetupError: another suffix or width.
        """
        target = Path(path)
        if target.suffix not in SUFFIXES:
            raise SetupError(f"export({str(path)!r}): expected a name that ends in {', '.join(SUFFIXES)}")
        page = self.matplotlib(width, height)
        target.parent.mkdir(parents=True, exist_ok=True)
        kind = target.suffix[1:]
        with print_style():
            page.savefig(target, format=kind, metadata=dict(UNDATED[kind]))
        self._write_manifest(target, page.get_size_inches().tolist())
        return target

    def _write_manifest(self, target: Path, size: list[float]) -> None:
        facts = {
            "file": target.name,
            "figure": self.source.function,
            "parameters": dict(self.source.parameters),
            "runs": [{"run": run, "seq": seq} for run, seq in self.source.runs],
            "inches": size,
            "flashevolve_lab": version(),
        }
        target.with_name(target.name + ".json").write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None, **options: Any) -> dict[str, Any]:
        """What a notebook shows: Plotly's own bundle, and a line of text where Plotly cannot be drawn."""
        bundle = self.plotly()._repr_mimebundle_(include, exclude, **options)
        return {"text/plain": repr(self), **bundle}


def inches(width: str | float) -> float:
    """A width by name or in inches.

    Raises:
        SetupError: neither a known name nor a number above 0.
    """
    if isinstance(width, str) and width in WIDTHS:
        return WIDTHS[width]
    if isinstance(width, int | float) and not isinstance(width, bool) and 0 < width < 100:
        return float(width)
    raise SetupError(f"width={width!r}: expected 'column' (3.5 in), 'page' (7.16 in) or a number of inches")


def _checked_height(height: float) -> float:
    if not 0 < height < 100:
        raise SetupError(f"height={height!r}: expected a number of inches above 0")
    return height


@contextmanager
def print_style() -> Iterator[None]:
    """matplotlib's defaults and the print style, for as long as the block lasts, whatever the user has set."""
    from matplotlib import style

    with style.context(["default", dict(STYLE)]):
        yield


def version() -> str:
    """The installed version of this package."""
    try:
        return metadata.version("flashevolve-lab")
    except metadata.PackageNotFoundError:
        return "unknown"
