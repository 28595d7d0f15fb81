from .bertscore import (
    Baseline as Baseline,
    BertScores as BertScores,
    IdfWeights as IdfWeights,
)
from .matching import (
    TokenMatches as TokenMatches,
    bert_score as bert_score,
    estimate_baseline as estimate_baseline,
    idf_weights as idf_weights,
)
from .matching import (
    token_matches as token_matches,
)
