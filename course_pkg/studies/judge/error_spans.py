"""Error spans as InstructScore reports them: where an error is, its type, its severity, and why.

Source: Xu et al. 2023, "INSTRUCTSCORE", section 3, and its released code.
"""

import difflib
import re
from dataclasses import dataclass

from course_pkg.common.arguments import require_string
from course_pkg.studies.judge.geval import Judge, require_text

MOST_ERRORS = 5  # the number of errors that a prompt asks for, at most
SEVERITIES = {"minor": -1, "major": -5}
FIELDS = {
    "location": "Error location",
    "type": "Error type",
    "severity": "Severity",
    "explanation": "Explanation",
}
LINE = re.compile(r"(Error location|Error type|Severity|Explanation) (\d+):\s*(.*)", re.IGNORECASE)
HEAD = re.compile(r"(?:(\d+) errors?|(no) errors?)\.?:?", re.IGNORECASE)


class ErrorSpanError(ValueError):
    """The report does not follow the format, or a location does not occur in the text."""


@dataclass(frozen=True)
class ErrorSpan:
    """One error: the words that contain it, its type, "minor" or "major", and an explanation."""

    location: str
    type: str
    severity: str
    explanation: str

    def __post_init__(self) -> None:
        for field in FIELDS:
            if not isinstance(getattr(self, field), str) or not getattr(self, field).strip():
                raise ErrorSpanError(f"{field} is empty; every error must have one")
        severity = self.severity.strip().lower()
        if severity not in SEVERITIES:
            raise ErrorSpanError(f'severity must be "minor" or "major", got {self.severity!r}')
        object.__setattr__(self, "severity", severity)

    @property
    def points(self) -> int:
        """What the error adds to the score: -1 if it is minor, -5 if it is major."""
        return SEVERITIES[self.severity]

    def positions(self, text: str) -> list[tuple[int, int]]:
        """Where the location occurs in a text, as (start, end); white space may differ."""
        words = r"\s+".join(map(re.escape, self.location.split()))
        return [match.span() for match in re.finditer(words, text)]


@dataclass(frozen=True)
class ErrorReport:
    """The error spans of one text."""

    errors: tuple[ErrorSpan, ...]

    @property
    def score(self) -> int:
        """The sum of -1 for each minor and -5 for each major error; 0 is the best score."""
        return sum(error.points for error in self.errors)


def parse_report(report: str) -> ErrorReport:
    """Read a report: a first line "2 errors" or "No errors", then four labeled lines per error.

    Raises:
        ErrorSpanError: quotes the line that has the wrong form, or says what is missing.
    """
    numbered = enumerate(require_string(report, "a report").splitlines(), 1)
    lines = [(number, line.strip()) for number, line in numbered if line.strip()]
    head = HEAD.fullmatch(lines[0][1]) if lines else None
    if not head:
        raise ErrorSpanError(
            f'line 1 must be "No errors" or a count such as "2 errors", got '
            f"{lines[0][1] if lines else ''!r}"
        )
    announced = 0 if head[2] else int(head[1])
    errors: list[dict[str, str]] = []
    for number, line in lines[1:]:
        matched = LINE.fullmatch(line)
        if not matched:
            labels = ", ".join(f'"{label} n:"' for label in FIELDS.values())
            raise ErrorSpanError(f"line {number} must begin with one of {labels}, got {line!r}")
        field = next(name for name, label in FIELDS.items() if label.lower() == matched[1].lower())
        if int(matched[2]) == len(errors) + 1 and (not errors or len(errors[-1]) == len(FIELDS)):
            errors.append({})
        if int(matched[2]) != len(errors) or field in errors[-1]:
            raise ErrorSpanError(
                f"line {number} is {line!r}; the four lines of an error must be together, each "
                "of them once, and the errors must be numbered 1, 2, 3, …"
            )
        quoted = re.fullmatch(r'["“](.*)["”]', matched[3]) if field == "location" else None
        errors[-1][field] = quoted[1] if quoted else matched[3]
    if errors and (missing := [FIELDS[field] for field in FIELDS if field not in errors[-1]]):
        raise ErrorSpanError(f"error {len(errors)} lacks {', '.join(missing)}")
    if len(errors) != announced:
        raise ErrorSpanError(f"it announces {announced} errors, but the report has {len(errors)}")
    return ErrorReport(tuple(ErrorSpan(**error) for error in errors))


def check_locations(report: ErrorReport, text: str) -> None:
    """Raise ErrorSpanError unless every location of a report occurs in the text."""
    for error in report.errors:
        if error.positions(text):
            continue
        words = text.split()
        width = len(error.location.split())
        pieces = [" ".join(words[i : i + width]) for i in range(len(words) - width + 1)]
        close = difflib.get_close_matches(error.location, pieces, n=1)
        hint = f"; the closest words in it are {close[0]!r}" if close else ""
        raise ErrorSpanError(f"{error.location!r} does not occur in the text that was judged{hint}")


def report_prompt(text: str, *, reference: str | None = None) -> str:
    """The prompt that asks for a report on a text, compared with the reference if given."""
    compare = "" if reference is None else ", by comparing it with the reference"
    form = "\n".join(f"{label} 1: ..." for label in FIELDS.values())
    parts = [
        f"Find the errors in the text below, at most {MOST_ERRORS}{compare}.\n"
        "A major error changes or obscures the meaning; a minor one is noticed and does not.",
        f"Text:\n{require_text(text, 'text')}",
        f'Answer "No errors", or in exactly this form, with the location quoted word for word:\n'
        f"1 error\n{form}",
    ]
    if reference is not None:
        parts.insert(1, f"Reference:\n{require_text(reference, 'reference')}")
    return "\n\n".join(parts)


def find_error_spans(
    judge: Judge, text: str, *, reference: str | None = None, max_tokens: int = 400
) -> ErrorReport:
    """Ask a judge for a report on a text, parse it, and check every location.

    Raises:
        ErrorSpanError: the report isn't valid; the error quotes the judge's answer.
    """
    prompt = report_prompt(text, reference=reference)
    written = judge.write(prompt, "", n=1, max_tokens=max_tokens, temperature=0.0, seed=0)[0]
    try:
        report = parse_report(written)
        check_locations(report, text)
    except ErrorSpanError as error:
        raise ErrorSpanError(f"{error}\nThe judge wrote:\n{written}") from None
    return report
