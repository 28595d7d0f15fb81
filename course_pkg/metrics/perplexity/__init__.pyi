from .likelihood import Likelihood as Likelihood, count_units as count_units
from .ngram_lm import END as END, START as START, UNKNOWN as UNKNOWN, NGramModel as NGramModel
from .score import (
    PerplexityResult as PerplexityResult,
    Window as Window,
    perplexity as perplexity,
    windows as windows,
)
from .token_scores import (
    PASS_COST as PASS_COST,
    plan_batches as plan_batches,
    target_log_probs as target_log_probs,
    token_log_probs as token_log_probs,
)
