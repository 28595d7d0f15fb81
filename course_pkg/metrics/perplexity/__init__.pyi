from .likelihood import Likelihood as Likelihood
from .likelihood import count_units as count_units
from .ngram_lm import END as END
from .ngram_lm import START as START
from .ngram_lm import UNKNOWN as UNKNOWN
from .ngram_lm import NGramModel as NGramModel
from .text_perplexity import (
    PerplexityResult as PerplexityResult,
)
from .text_perplexity import (
    Window as Window,
)
from .text_perplexity import (
    perplexity as perplexity,
)
from .text_perplexity import (
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
