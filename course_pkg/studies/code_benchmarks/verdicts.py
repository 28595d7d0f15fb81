"""Verdicts on a program that was run on the tests of a problem: one passes, the others say why not.

Chapter: evaluation/code-benchmarks.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class Verdict(StrEnum):
    """How a program ended."""

    PASSED = "passed"
    WRONG_ANSWER = "wrong answer"
    EXCEPTION = "exception"
    SYNTAX_ERROR = "syntax error"
    NOT_DEFINED = "function not defined"
    TIME_LIMIT = "time limit"
    MEMORY_LIMIT = "memory limit"
    PROCESS_LIMIT = "process limit"
    MESSAGE_LIMIT = "message limit"
    EXITED = "exited"
    KILLED = "killed"


@dataclass(frozen=True)
class ProgramResult:
    """A verdict on one program.

    detail: the failed test with the value that came back, an exception, or a limit; empty if the
    program passed. One line, which may quote the program; what isn't printable is escaped.
    calls: of the function that were answered with a value.
    """

    verdict: Verdict
    detail: str = ""
    calls: int = 0

    @property
    def passed(self) -> bool:
        """Whether all tests passed."""
        return self.verdict is Verdict.PASSED


def count_verdicts(results: Iterable[ProgramResult]) -> dict[str, int]:
    """How many results have each verdict, in the order of `Verdict`; zeros are left out.

    >>> count_verdicts([ProgramResult(Verdict.KILLED), ProgramResult(Verdict.PASSED)])
    {'passed': 1, 'killed': 1}
    """
    found = [result.verdict for result in results]
    return {verdict.value: found.count(verdict) for verdict in Verdict if verdict in found}
