"""The functions of mode "rouge155"; test_score tests whole scores in this mode."""

import pytest

from course_pkg.metrics.rouge import perl
from course_pkg.metrics.tokenizers import porter_stem


def test_step_4_may_remove_two_suffixes():
    for word, stem, nltk in (
        ("agreement", "agreem", "agreement"),  # keeps -ement and -ment (m = 1), loses -ent
        ("accidental", "accid", "accident"),  # loses -al, then also -ent
        ("adoption", "adopt", "adopt"),
        ("replacement", "replac", "replac"),
        ("running", "run", "run"),
    ):
        assert perl.stem(word, {}) == stem
        assert porter_stem(word) == nltk


def test_a_table_that_is_too_large_raises_an_error(monkeypatch):
    monkeypatch.setattr(perl, "_MOST_CELLS", 100)
    perl.wlcs_positions(["a"] * 10, ["a"] * 10, 2)
    with pytest.raises(ValueError, match="each sentence on its own line"):
        perl.wlcs_positions(["a"] * 11, ["a"] * 10, 2)
