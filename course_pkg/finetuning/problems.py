"""What is wrong with records and samples, and a report that counts and lists every problem.

Reading and tokenizing (records, masking) leave out what they can't use, and report it here. The
kinds of problem are:

- of a file: "invalid JSON", "invalid UTF-8", "duplicate field";
- of a record: "missing field", "wrong type", "invalid text" (half of a surrogate pair);
- of a conversation: "no messages", "unknown role", "blank text", "empty answer",
  "second system turn", "roles out of order", "no final answer";
- of tokens: "special token in text", "refused by the template", "too long", "truncated",
  "no answer left".

Chapter: finetuning/instructions.
"""

from collections import Counter
from dataclasses import dataclass

SHOWN = 3  # problems of each kind that a printed report lists


class RecordError(ValueError):
    """One record can't be used: the kind of problem, and what was found.

    >>> print(RecordError("missing field", "no output"))
    missing field: no output
    """

    def __init__(self, kind: str, detail: str) -> None:
        super().__init__(f"{kind}: {detail}")
        self.kind = kind
        self.detail = detail


@dataclass(frozen=True)
class Problem:
    """One problem: where it is ("line 4", "record 3"), its kind, and what was found.

    >>> print(Problem("line 4", "missing field", "no output"))
    line 4: missing field: no output
    """

    where: str
    kind: str
    detail: str

    def __str__(self) -> str:
        return f"{self.where}: {self.kind}: {self.detail}"


@dataclass(frozen=True)
class ProblemReport:
    """How many records were seen and kept, and every problem in their order.

    total, kept: numbers of records. A record with a problem is left out, except where its kind is
    "truncated".

    >>> problem = Problem("line 2", "missing field", "no output")
    >>> print(ProblemReport(total=6, kept=5, problems=(problem,)))
    6 records: 5 kept, 1 problem
      1 × missing field
          line 2: no output
    """

    total: int
    kept: int
    problems: tuple[Problem, ...] = ()

    def counts(self) -> dict[str, int]:
        """The number of problems of each kind, the most frequent first."""
        return dict(Counter(problem.kind for problem in self.problems).most_common())

    def __str__(self) -> str:
        lines = [
            f"{_number(self.total, 'record')}: {self.kept} kept, "
            f"{_number(len(self.problems), 'problem')}"
        ]
        for kind, count in self.counts().items():
            lines.append(f"  {count} × {kind}")
            found = [problem for problem in self.problems if problem.kind == kind]
            lines += [f"      {each.where}: {each.detail}" for each in found[:SHOWN]]
            if count > SHOWN:
                lines.append(f"      and {count - SHOWN} more")
        return "\n".join(lines)


def _number(count: int, name: str) -> str:
    return f"{count} {name}" + ("" if count == 1 else "s")
