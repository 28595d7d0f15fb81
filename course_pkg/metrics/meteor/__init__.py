"""METEOR: words aligned by form, stem and synonym."""

from course_pkg.metrics.meteor.alignment import (
    Alignment,
    MatchedPair,
    best_alignment,
    count_chunks,
    match_candidates,
)
from course_pkg.metrics.meteor.meteor_score import (
    PARAMETERS,
    MeteorParameters,
    MeteorScore,
    f_mean,
    meteor,
)
