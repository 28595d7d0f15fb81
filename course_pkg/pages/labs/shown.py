"""`IPython.display` where IPython is not installed: the names that the course's pages use."""

from course_pkg.pages.labs.cells import display

__all__ = ["HTML", "SVG", "Latex", "Markdown", "Math", "display"]


class _Shown:
    """A text that a page shows as its kind."""

    def __init__(self, data: str) -> None:
        self.data = data

    def __repr__(self) -> str:
        return f"<IPython.core.display.{type(self).__name__} object>"


class HTML(_Shown):
    """HTML text."""

    def _repr_html_(self) -> str:
        return self.data


class Markdown(_Shown):
    """Markdown text."""

    def _repr_markdown_(self) -> str:
        return self.data


class Latex(_Shown):
    """LaTeX text, with its dollar signs."""

    def _repr_latex_(self) -> str:
        return self.data


class Math(_Shown):
    """A displayed formula, without dollar signs."""

    def _repr_latex_(self) -> str:
        return rf"$\displaystyle {self.data}$"


class SVG(_Shown):
    """A drawing as SVG text."""

    def _repr_svg_(self) -> str:
        return self.data
