"""Error spans: a strict format, locations that must occur in the text, a counted score."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from course_pkg.studies.judge.error_spans import (
    ErrorReport,
    ErrorSpan,
    ErrorSpanError,
    check_locations,
    find_error_spans,
    parse_report,
    report_prompt,
)
from tests.refusals import require_refusals

from .judges import RuleJudge

TEXT = "On a gray Tuesday the\n  ferry flew to the island, and it's crew were glad."
GOOD = """2 errors
Error location 1: the ferry flew
Error type 1: mistranslation
Severity 1: major
Explanation 1: A ferry sails: it does not fly.
Error location 2: "it's"
Error type 2: spelling
Severity 2: Minor
Explanation 2: The possessive is "its".
"""
FIELDS = st.text(st.characters(categories=["L", "N"]), min_size=1, max_size=12)


@given(st.lists(st.tuples(FIELDS, FIELDS, st.sampled_from(["minor", "major"]), FIELDS), max_size=6))
def test_a_report_written_in_the_format_is_parsed_back_and_counted(errors):
    lines = [f"{len(errors)} errors"]
    for n, (location, kind, severity, explanation) in enumerate(errors, 1):
        lines += [f"Error location {n}: {location}", f"Error type {n}: {kind}"]
        lines += [f"Severity {n}: {severity}", f"Explanation {n}: {explanation}"]
    report = parse_report("\n".join(lines))
    assert report == ErrorReport(tuple(ErrorSpan(*error) for error in errors))
    severities = [error[2] for error in errors]
    assert report.score == -severities.count("minor") - 5 * severities.count("major")


def test_the_lines_of_one_error_may_come_in_any_order_and_a_text_without_errors_scores_zero():
    head, *lines = GOOD.splitlines()
    shuffled = "\n".join([head, *lines[3::-1], "", *lines[:3:-1]])
    report = parse_report(shuffled)
    assert report.errors == (
        ErrorSpan("the ferry flew", "mistranslation", "major", "A ferry sails: it does not fly."),
        ErrorSpan("it's", "spelling", "minor", 'The possessive is "its".'),
    )
    for head in ("No errors", "no error.", "0 errors", "NO ERRORS:"):
        assert parse_report(head) == ErrorReport(()) and parse_report(head).score == 0


def without(line):
    return "\n".join(row for row in GOOD.splitlines() if not row.startswith(line))


def test_a_report_in_another_format_raises_an_error():
    require_refusals(
        ("", "line 1 must be"),
        (GOOD.replace("2 errors", "3 errors"), "announces 3 errors, but the report has 2"),
        (without("Severity 2"), "error 2 lacks Severity"),
        (without("Explanation 1"), "must be together"),
        (GOOD + "I hope this helps!", "line 10 must begin .*, got 'I hope this helps!'"),
        (GOOD.replace("Severity 2", "Severity 3"), "numbered"),
        (GOOD.replace("Error type 1", "Error location 1"), "each of them once"),
        (GOOD.replace("Severity 1: major", "Severity 1: awful"), '"minor" or "major"'),
        (GOOD.replace(" the ferry flew", ""), "location is empty"),
        of=parse_report,
        errors=ErrorSpanError,
    )


def test_all_occurrences_of_a_location_are_found_across_line_breaks():
    ferry, crew = parse_report(GOOD).errors
    ((start, end),) = ferry.positions(TEXT)
    assert TEXT[start:end].split() == ["the", "ferry", "flew"]
    assert len(crew.positions(TEXT)) == 1
    assert len(ErrorSpan("the", "x", "minor", "x").positions(TEXT)) == 2
    check_locations(parse_report(GOOD), TEXT)
    literal = ErrorSpan("a.c (x)", "x", "minor", "x")
    assert literal.positions("abc (x), a.c (x)") == [(9, 16)]


def test_a_location_that_does_not_occur_raises_an_error_with_the_closest_words():
    report = ErrorReport((ErrorSpan("the fairy flew", "x", "major", "x"),))
    with pytest.raises(ErrorSpanError, match=r"does not occur.*'the ferry flew'"):
        check_locations(report, TEXT)
    with pytest.raises(ErrorSpanError, match=r"judged$"):
        check_locations(ErrorReport((ErrorSpan("quite another thing", "x", "minor", "x"),)), TEXT)


def test_a_judges_report_is_parsed_and_checked_and_only_a_given_reference_is_mentioned():
    judge = RuleJudge(writes=[GOOD])
    assert find_error_spans(judge, TEXT, reference="The ferry sailed.").score == -6
    [(prompt, _, settings)] = judge.asked
    assert TEXT in prompt and "The ferry sailed." in prompt and settings["temperature"] == 0
    assert "reference" not in report_prompt("It rains up.").lower()
    assert "Reference:\nIt rains." in report_prompt("It rains up.", reference="It rains.")
    with pytest.raises(ValueError, match="text is empty"):
        report_prompt(" ")


def test_an_invalid_report_raises_an_error_that_quotes_it():
    for written, message in (("All fine!", "line 1"), (GOOD, "does not occur")):
        with pytest.raises(ErrorSpanError, match=message) as caught:
            find_error_spans(RuleJudge(writes=[written]), "Another text.")
        assert written in str(caught.value)
