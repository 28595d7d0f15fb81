"""BLEU: n-gram precision with a brevity penalty.

>>> corpus_bleu(["the cat sat on the mat"], [["the cat sat on the mat"]]).score
1.0
"""

from course_pkg.metrics.bleu.score import (
    BleuScore,
    PreparedReferences,
    bleu_from_counts,
    corpus_bleu,
    sentence_bleu,
)
