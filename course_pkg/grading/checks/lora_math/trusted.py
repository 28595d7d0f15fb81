"""`lora-math`, beside the verdict: the questions, what they draw, and the wrong methods known.

Draws isolate: a case for one property is blind to the mistakes that belong to another (α = r
hides a wrong scale, a symmetric BA hides a transposed one, B = 0 hides both), so that an answer
loses exactly the marks of what it got wrong. Right values come from `course_pkg.adapters`.
"""

from .by_hand import BY_HAND
from .counts import COUNTS
from .forward import FORWARD
from .inject import INJECT
from .merge import MERGE

QUESTIONS = (*BY_HAND, COUNTS, FORWARD, MERGE, INJECT)
