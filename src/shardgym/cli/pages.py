"""The commands' HTML pages: templates of one look, each written as one self-contained file."""

from pathlib import Path
from typing import Any

import jinja2

from shardgym.problem.files import write_text
from shardgym.version import __version__


def write_page(path: Path, template: str, **content: Any) -> None:
    """Write a page, atomically.

    Args:
        path: the file.
        template: of `cli/templates/`, such as "report.html.j2"; all of them extend "page.html.j2".
        content: what the template shows; every text is escaped.
    """
    loader = jinja2.PackageLoader("shardgym.cli")
    environment = jinja2.Environment(loader=loader, autoescape=True, trim_blocks=True, undefined=jinja2.StrictUndefined)
    write_text(Path(path), environment.get_template(template).render(version=__version__, **content))
