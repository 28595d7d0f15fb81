from .matching import (
    IdfWeights as IdfWeights,
)
from .matching import (
    TokenMatches as TokenMatches,
)
from .matching import (
    idf_weights as idf_weights,
)
from .matching import (
    token_matches as token_matches,
)
from .score import (
    Baseline as Baseline,
)
from .score import (
    BertScores as BertScores,
)
from .score import (
    bert_score as bert_score,
)
from .score import (
    estimate_baseline as estimate_baseline,
)
