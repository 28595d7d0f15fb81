"""`bleu`, beside the verdict: the questions, what they draw, and the wrong methods known.

Draws isolate: a case for one property is blind to the mistakes that belong to another (no word
twice hides missing clipping, equal precisions hide a wrong mean, equal lengths hide a wrong
penalty), so that an answer loses exactly the marks of what it got wrong. Right values come from
`course_pkg.metrics`; the wrong methods are in `methods`.
"""

from .by_hand import ONE_REFERENCE
from .by_hand_two import TWO_REFERENCES
from .corpus import CORPUS
from .counting import COUNTS
from .lengths import CLOSEST, PENALTY
from .sentence import SENTENCE

QUESTIONS = (*ONE_REFERENCE, *TWO_REFERENCES, COUNTS, CLOSEST, PENALTY, CORPUS, SENTENCE)
