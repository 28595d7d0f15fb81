"""Mode "rouge155": where Lin's Perl script ROUGE-1.5.5 differs from his paper.

1. Stemming: irregular forms are looked up in WordNet's exception files and not stemmed; step 4 of
   Porter's rules may remove -ment and -ent after another suffix (`stem`). The script has WordNet
   2.0's files; version 3.0, which most systems have, adds six plurals, such as "ashes".
2. ROUGE-L is the summary-level one, `rouge_lsum`.
3. ROUGE-W weighs the length of a reference twice, works line by line, and looks for gaps only in
   the reference (`weighted_hits`, `wlcs_union`).
4. ROUGE-SU does not count the last word of a text as a single word (`rouge_su`).
5. Several references are pooled (-f A), or the best has the highest recall (`score_overlaps`).
6. Precision, recall and F have five digits, and F is computed from the rounded two (`five_digits`).

Source: ROUGE-1.5.5.pl.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache

from course_pkg.metrics.rouge.lcs import COUNTED, FREE, Tokens, wlcs_table

MODE = "rouge155"
_MOST_CELLS = 30_000_000  # of a table that is kept in memory to read the path from it
_STEP_4 = "ement ance ence able ible ant ism ate iti ous ive ize al er ic ou"


def stem(word: str, irregular: Mapping[str, str]) -> str:
    """Stem a word: an irregular form is looked up; the rules are applied to all other words."""
    return irregular[word] if word in irregular else _stem(word)


@lru_cache(maxsize=2**16)
def _stem(word: str) -> str:
    return _stemmer().stem(word)


@lru_cache(maxsize=1)
def _stemmer():
    from nltk.stem.porter import PorterStemmer  # imported here because nltk is slow to import

    class PerlStemmer(PorterStemmer):
        """Porter's rules with the script's step 4: -ment and -ent may follow another suffix."""

        def _step4(self, word: str) -> str:
            def drop(word: str, suffix: str) -> str:
                rest = word[: len(word) - len(suffix)]
                return rest if self._measure(rest) > 1 else word

            for suffix in _STEP_4.split():
                if word.endswith(suffix):
                    word = drop(word, suffix)
                    break
            if word.endswith("ment"):
                word = drop(word, "ment")
            if word.endswith("ent"):
                word = drop(word, "ent")
            elif word.endswith(("sion", "tion")):
                word = drop(word, "ion")
            return word

    return PerlStemmer(PorterStemmer.MARTIN_EXTENSIONS)


def wlcs_positions(reference: Tokens, hypothesis: Tokens, weight: float) -> list[tuple[int, int]]:
    """Find the matches on the path through `lcs.wlcs_table`, in reference and hypothesis."""
    if len(reference) * len(hypothesis) > _MOST_CELLS:
        raise ValueError(
            f"the table of {len(reference):,} by {len(hypothesis):,} tokens is too large (at most "
            f"{_MOST_CELLS:,} cells are allowed); put each sentence on its own line"
        )
    _, steps = wlcs_table(reference, hypothesis, weight)
    pairs = []
    i = len(reference)
    j = len(hypothesis)
    while i and j:
        step = steps[i][j]
        if step != "left":
            i -= 1
        if step != "up":
            j -= 1
        if step == "match":
            pairs.append((i, j))
    return pairs[::-1]


def wlcs_union(reference: Tokens, hypotheses: Iterable[Tokens], weight: float) -> set[int]:
    """The reference positions that `wlcs_positions` matches with any hypothesis."""
    return {i for other in hypotheses for i, _ in wlcs_positions(reference, other, weight)}


def weighted_hits(lines: Iterable[Sequence[int]], weight: float) -> float:
    """The sum of k ** weight over all runs of k matches in states of `lcs.clipped_union`."""
    return sum(run**weight for states in lines for run in _runs(states))


def _runs(states: Sequence[int]) -> Iterator[int]:
    """The lengths of the runs of matches; a clipped match neither counts nor ends a run."""
    length = 0
    for position, state in enumerate(states, start=1):
        if state == COUNTED:
            length += 1
            # A run before a clipped match continues at the next match, and is lost without one.
            if position == len(states) or states[position] == FREE:
                yield length
                length = 0


def five_digits(number: float) -> float:
    """Round a number as the script prints it."""
    return float(f"{number:.5f}")
