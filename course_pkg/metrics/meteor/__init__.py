"""METEOR: words aligned by form, stem and synonym.

>>> meteor("the cat", "the dog", synonyms=None).precision
0.5
"""

from course_pkg.metrics.meteor.alignment import (
    Alignment,
    MatchedPair,
    best_alignment,
    count_chunks,
    match_candidates,
)
from course_pkg.metrics.meteor.score import (
    PARAMETERS,
    MeteorParameters,
    MeteorScore,
    f_mean,
    meteor,
)
