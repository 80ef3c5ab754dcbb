"""The frame of every report: heading, style, the plotting library and who made it."""

import html
from importlib import resources
from string import Template

import plotly.offline

from koordinator import __version__


def page(title: str, body: str, *, style: str = "") -> str:
    """A whole page as HTML text, plotting library included; `body` and `style` (more CSS) stand in it as they are."""
    return _template(__package__, "frame.html").substitute(
        title=html.escape(title),
        style=style,
        plotly=plotly.offline.get_plotlyjs(),
        body=body,
        version=html.escape(__version__),
    )


def body(package: str, **parts: str) -> str:
    """The `page.html` of a package with its `$name`s replaced. Raises: KeyError when a part is missing."""
    return _template(package, "page.html").substitute(parts)


def table(header: list[str], rows: list[list[str]]) -> str:
    """Texts as a table; the first column names the row."""
    head = "".join(f"<th>{html.escape(cell)}</th>" for cell in header)
    lines = "".join(
        "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows
    )
    return f"<table><tr>{head}</tr>{lines}</table>"


def _template(package: str, name: str) -> Template:
    return Template(resources.files(package).joinpath(name).read_text(encoding="utf-8"))
