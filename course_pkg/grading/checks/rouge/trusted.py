"""`rouge`, beside the verdict: the questions, what they draw, and the wrong methods known.

Draws isolate: a case for one property is blind to the mistakes that belong to another (texts of
equal length hide precision taken for recall, words that do not repeat hide counts that are not
clipped, β = 1 hides what is done with β), so that an answer loses exactly the marks of what it got
wrong. Right values come from `course_pkg.metrics`.
"""

from .by_hand import BY_HAND
from .rouge_l import ROUGE_L
from .rouge_n import ROUGE_N
from .several import SEVERAL
from .skips import SKIP_BIGRAMS
from .subsequence import LCS

QUESTIONS = (*BY_HAND, ROUGE_N, SEVERAL, LCS, ROUGE_L, SKIP_BIGRAMS)
