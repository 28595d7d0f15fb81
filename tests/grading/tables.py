"""Tables that are printed at the end of a pytest run, one for each corpus."""

from dataclasses import dataclass, field
from typing import Any

import pytest


@dataclass
class Table:
    """A pytest plugin: rows of text under a title, and a last line."""

    title: str
    heads: tuple[str, ...]
    rows: list[tuple[Any, ...]] = field(default_factory=list)
    last: str = ""

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the rows."""
        rows = [tuple(map(str, row)) for row in (self.heads, *self.rows)]
        widths = [max(len(row[i]) for row in rows) for i in range(len(self.heads))]
        terminalreporter.section(self.title)
        for row in rows:
            line = "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True))
            terminalreporter.line(line.rstrip())
        if self.last:
            terminalreporter.line(self.last)


def print_at_end(config: pytest.Config, table: Table) -> Table:
    """Have the table printed after the tests."""
    config.pluginmanager.register(table)
    return table
