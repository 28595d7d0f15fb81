"""`perplexity`, beside the verdict: the questions, what they draw, and the wrong methods known.

Draws isolate: a case for one property is blind to the mistakes that belong to another (a Llama's
positions are relative, a bigram model attends to nothing, a batch that divides evenly has no last
piece), so that an answer loses exactly the marks of what it got wrong. Right values come from
`course_pkg.metrics`.
"""

from .batch import BATCH
from .by_hand import BY_HAND
from .corpus import CORPUS
from .log_probs import LOG_PROBS
from .sliding import SLIDING

QUESTIONS = (*BY_HAND, LOG_PROBS, BATCH, CORPUS, SLIDING)
