"""The parts of mode "rouge155" by themselves; whole scores in this mode are in test_score."""

import pytest

from course_pkg.metrics.rouge import perl
from course_pkg.metrics.tokenizers import porter_stem


@pytest.mark.parametrize(
    ("word", "stem", "nltk"),
    [
        ("agreement", "agreem", "agreement"),  # -ement stays (m = 1), -ment stays, -ent goes
        ("accidental", "accid", "accident"),  # -al goes, then -ent as well
        ("adoption", "adopt", "adopt"),
        ("replacement", "replac", "replac"),
        ("running", "run", "run"),
    ],
)
def test_step_4_may_remove_two_suffixes(word, stem, nltk):
    assert perl.stem(word, {}) == stem
    assert porter_stem(word) == nltk


def test_an_irregular_form_is_looked_up_and_not_stemmed():
    assert perl.stem("mice", {"mice": "mouse"}) == "mouse"
    assert perl.stem("mouse", {"mice": "mouse"}) == "mous"


def test_a_path_through_too_large_a_table_is_an_error(monkeypatch):
    monkeypatch.setattr(perl, "_MOST_CELLS", 100)
    perl.wlcs_positions(["a"] * 10, ["a"] * 10, 2)
    with pytest.raises(ValueError, match="each sentence on its own line"):
        perl.wlcs_positions(["a"] * 11, ["a"] * 10, 2)


def test_a_clipped_match_does_not_end_a_run():
    # Runs of the first line: 1 and then, over the clipped match, 2. The last one is lost, because
    # no counted match follows it in its line.
    counted, clipped, free = perl.COUNTED, 1, perl.FREE
    assert perl.weighted_hits([[counted, free, counted, clipped, counted]], 2) == 1 + 4
    assert perl.weighted_hits([[counted, clipped]], 2) == 0


def test_the_best_reference_has_the_highest_rank_and_the_first_of_equals_wins():
    assert perl.best_index([0.1, 0.2, 0.2], [None, None, None]) == 1
    assert perl.best_index([0.1, 0.2], [0.5, None]) == 0
