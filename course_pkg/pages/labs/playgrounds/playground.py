"""What a playground is: fields with limits, and a view, a function from their values to HTML.

Values come from a form or from a link, so they are texts that may hold anything: `show` checks
them, and views escape what they show.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from course_pkg.pages.labs.playgrounds.markup import paragraph

KINDS = ("text", "lines", "integer", "choice")
LARGEST = 1e6  # in a row of numbers


class WrongInput(ValueError):
    """What a reader has typed can't be shown; the message says what is wanted."""


@dataclass(frozen=True)
class Field:
    """One control. kind: "text" of one line, "lines", "integer" from low to high, or "choice".

    most: characters of a text, or of all lines.
    """

    name: str
    label: str
    kind: str
    default: str
    options: tuple[str, ...] = ()
    low: int = 0
    high: int = 0
    most: int = 300

    def value(self, text: str) -> Any:
        """The value that a text stands for: str, list of str (lines that aren't empty), or int.

        Raises WrongInput for a text that the control could not have given.
        """
        if self.kind == "integer":
            try:
                number = int(text)
            except ValueError:
                number = self.low - 1
            if not self.low <= number <= self.high:
                wanted = f"a whole number from {self.low} to {self.high}"
                raise WrongInput(f"{self.label}: expected {wanted}, but {text[:40]!r} was given")
            return number
        if self.kind == "choice":
            if text not in self.options:
                wanted = ", ".join(self.options)
                raise WrongInput(f"{self.label}: expected one of {wanted}, not {text[:40]!r}")
            return text
        if len(text) > self.most:
            raise WrongInput(
                f"{self.label}: at most {self.most} characters, but {len(text)} were given"
            )
        if self.kind == "lines":
            return [line.strip() for line in text.splitlines() if line.strip()]
        return text


def row_of_numbers(text: str, label: str) -> list[float]:
    """The numbers of a text, separated by spaces or commas, up to a million; else WrongInput.

    Example:

        >>> row_of_numbers("1, 2.5 −3", "Row")
        [1.0, 2.5, -3.0]
    """
    return [_number(part, label) for part in text.replace(",", " ").replace("−", "-").split()]


def _number(part: str, label: str) -> float:
    try:
        value = math.nan if "_" in part else float(part)
    except ValueError:
        value = math.nan
    if not abs(value) <= LARGEST:
        wanted = f"numbers from −{LARGEST:,.0f} to {LARGEST:,.0f}"
        raise WrongInput(f"{label}: expected {wanted}, but {part[:20]!r} was given")
    return value


@dataclass(frozen=True)
class Playground:
    """A form, with its name in links, and `view`: from the fields' values by name to HTML."""

    name: str
    title: str
    fields: tuple[Field, ...]
    view: Callable[..., str]

    def show(self, values: Mapping[str, str]) -> str:
        """The view of the fields' texts, or of their defaults; for wrong input, what is wrong."""
        try:
            typed = {
                field.name: field.value(str(values.get(field.name, field.default)))
                for field in self.fields
            }
            return self.view(**typed)
        except WrongInput as error:
            return paragraph(str(error), "lab-wrong")

    def default_view(self) -> str:
        """What the page shows before a reader has changed anything."""
        return self.show({})
