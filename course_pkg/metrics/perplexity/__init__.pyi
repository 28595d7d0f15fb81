from .likelihood import Likelihood as Likelihood, count_units as count_units
from .ngram_lm import END as END, START as START, UNKNOWN as UNKNOWN, NGramModel as NGramModel
from .text_perplexity import (
    PerplexityResult as PerplexityResult,
)
from .score import (
    Window as Window,
)
from .score import (
    perplexity as perplexity,
)
from .score import (
    windows as windows,
)
from .token_scores import (
    PASS_COST as PASS_COST,
)
from .token_scores import (
    plan_batches as plan_batches,
)
from .token_scores import (
    target_log_probs as target_log_probs,
)
from .token_scores import (
    token_log_probs as token_log_probs,
)
