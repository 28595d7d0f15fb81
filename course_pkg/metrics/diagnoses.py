"""Diagnoses in the manner of InstructScore: where an error is, of what kind, how bad, and why.

A report is plain text. This module asks for one, parses it strictly, checks that every location
occurs in the text that was judged, and adds up the severities to a score:

    score = -1 * (minor errors) - 5 * (major errors)        0 is a text without errors

The score is counted and not predicted: it says no more than the diagnoses do.

Source: Xu et al. 2023, "INSTRUCTSCORE: Towards Explainable Text Generation Evaluation with
Automatic Feedback", section 3, and its released code. Chapter: metrics/judge.
"""

import difflib
import re
from dataclasses import dataclass

from course_pkg.metrics.judge import Judge
from course_pkg.metrics.judge_prompt import require_text
from course_pkg.metrics.texts import require_string

SEVERITIES = {"minor": -1, "major": -5}
FIELDS = {"location": "Error location", "type": "Error type", "severity": "Severity",
          "explanation": "Explanation"}  # fmt: skip
LINE = re.compile(r"(Error location|Error type|Severity|Explanation) (\d+):\s*(.*)", re.IGNORECASE)
HEAD = re.compile(r"(?:(\d+) errors?|(no) errors?)\.?:?", re.IGNORECASE)


class DiagnosisError(ValueError):
    """A report that does not follow the form, or speaks of what is not there."""


@dataclass(frozen=True)
class Diagnosis:
    """One error: the words it is in, its type, "minor" or "major", and why it is one.

    Raises DiagnosisError for an empty field or another severity.

    >>> Diagnosis("purple", "wrong word", "Minor", "Tuesdays have no color.").points
    -1
    """

    location: str
    type: str
    severity: str
    explanation: str

    def __post_init__(self) -> None:
        for field in FIELDS:
            if not isinstance(getattr(self, field), str) or not getattr(self, field).strip():
                raise DiagnosisError(f"{field} is empty; every error needs one")
        severity = self.severity.strip().lower()
        if severity not in SEVERITIES:
            raise DiagnosisError(f'severity must be "minor" or "major", got {self.severity!r}')
        object.__setattr__(self, "severity", severity)

    @property
    def points(self) -> int:
        """What the error costs: -1 if it is minor, -5 if it is major."""
        return SEVERITIES[self.severity]

    def spans(self, text: str) -> list[tuple[int, int]]:
        """Where the location stands in a text, as (start, end); differing blanks are the same."""
        words = r"\s+".join(map(re.escape, self.location.split()))
        return [match.span() for match in re.finditer(words, text)]


@dataclass(frozen=True)
class Report:
    """The diagnoses of one text."""

    diagnoses: tuple[Diagnosis, ...]

    @property
    def score(self) -> int:
        """-1 for every minor and -5 for every major error: 0 at best."""
        return sum(diagnosis.points for diagnosis in self.diagnoses)

    def unlocated(self, text: str) -> tuple[Diagnosis, ...]:
        """The diagnoses whose location does not occur in the text: the judge made it up."""
        return tuple(d for d in self.diagnoses if not d.spans(text))


def parse_report(report: str) -> Report:
    """Read a report: a first line "2 errors" or "No errors", then four labeled lines for each.

    The four lines of an error may come in any order, and each ends where its line does; blank
    lines are passed over. Raises TypeError for what is no string, DiagnosisError, with the line,
    for anything else that stands there, is missing, comes twice, or is miscounted.
    Source: the form is InstructScore's, made regular.

    >>> report = parse_report('''1 error
    ... Error location 1: purple Tuesday
    ... Error type 1: wrong word
    ... Severity 1: major
    ... Explanation 1: A day has no color.''')
    >>> report.score, report.diagnoses[0].location
    (-5, 'purple Tuesday')
    >>> parse_report("No errors.").score
    0
    """
    written = require_string(report, "a report").splitlines()
    lines = [(n, line.strip()) for n, line in enumerate(written, 1) if line.strip()]
    head = HEAD.fullmatch(lines[0][1]) if lines else None
    if not head:
        raise DiagnosisError(
            f'line 1 must be "No errors" or a count such as "2 errors", got '
            f"{lines[0][1] if lines else ''!r}"
        )
    promised = 0 if head[2] else int(head[1])
    errors: list[dict[str, str]] = []
    for number, line in lines[1:]:
        found = LINE.fullmatch(line)
        if not found:
            labels = ", ".join(f'"{label} n:"' for label in FIELDS.values())
            raise DiagnosisError(f"line {number} is {line!r}; it must begin with one of {labels}")
        field = next(name for name, label in FIELDS.items() if label.lower() == found[1].lower())
        if int(found[2]) == len(errors) + 1 and (not errors or len(errors[-1]) == len(FIELDS)):
            errors.append({})
        if int(found[2]) != len(errors) or field in errors[-1]:
            raise DiagnosisError(
                f"line {number} is {line!r}; each error's four lines stand together, once each, "
                "and errors are numbered 1, 2, 3, …"
            )
        quoted = re.fullmatch(r'["“](.*)["”]', found[3]) if field == "location" else None
        errors[-1][field] = quoted[1] if quoted else found[3]
    if errors and (missing := [FIELDS[field] for field in FIELDS if field not in errors[-1]]):
        raise DiagnosisError(f"error {len(errors)} lacks {', '.join(missing)}")
    if len(errors) != promised:
        raise DiagnosisError(f"the first line counts {promised} errors, {len(errors)} follow")
    return Report(tuple(Diagnosis(**error) for error in errors))


def check_locations(report: Report, text: str) -> None:
    """Raise DiagnosisError unless every location of a report occurs in the text.

    Such hallucinated locations are the third of the failure modes that InstructScore's authors
    list.

    >>> errors = (Diagnosis("gray Sunday", "wrong word", "minor", "Not so."),)
    >>> check_locations(Report(errors), "On a gray Monday, rain.")
    Traceback (most recent call last):
    ...
    course_pkg.metrics.diagnoses.DiagnosisError: 'gray Sunday' does not occur in the text ...
    """
    for diagnosis in report.unlocated(text):
        words, width = text.split(), len(diagnosis.location.split())
        pieces = [" ".join(words[i : i + width]) for i in range(len(words) - width + 1)]
        close = difflib.get_close_matches(diagnosis.location, pieces, n=1)
        hint = f"; the closest words there are {close[0]!r}" if close else ""
        raise DiagnosisError(
            f"{diagnosis.location!r} does not occur in the text that was judged{hint}"
        )


def report_prompt(text: str, *, reference: str | None = None, most: int = 5) -> str:
    """The prompt that asks for a report on a text, compared with a reference if there is one.

    Source: Xu et al. 2023 always give a reference.

    >>> report_prompt("It rains up.", reference="It rains.").splitlines()[0]
    'Find the errors in the text below, at most 5, by comparing it with the reference.'
    """
    compare = "" if reference is None else ", by comparing it with the reference"
    form = "\n".join(f"{label} 1: ..." for label in FIELDS.values())
    parts = [
        f"Find the errors in the text below, at most {most}{compare}.\n"
        "A major error changes or obscures the meaning; a minor one is noticed and does not.",
        f"Text:\n{require_text(text, 'text')}",
        f'Answer "No errors", or in exactly this form, with the location quoted word for word:\n'
        f"1 error\n{form}",
    ]
    if reference is not None:
        parts.insert(1, f"Reference:\n{require_text(reference, 'reference')}")
    return "\n\n".join(parts)


def diagnose(
    judge: Judge, text: str, *, reference: str | None = None, max_tokens: int = 400
) -> Report:
    """A judge's report on a text, parsed, and with every location checked.

    Raises DiagnosisError, with what the judge wrote, if the report can't be used.
    Source: Xu et al. 2023, section 3.
    """
    prompt = report_prompt(text, reference=reference)
    written = judge.write(prompt, "", n=1, max_tokens=max_tokens, temperature=0.0, seed=0)[0]
    try:
        report = parse_report(written)
        check_locations(report, text)
    except DiagnosisError as error:
        raise DiagnosisError(f"{error}\nThe judge wrote:\n{written}") from None
    return report
