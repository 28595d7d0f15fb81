from .matching import (
    IdfWeights as IdfWeights,
    TokenMatches as TokenMatches,
    idf_weights as idf_weights,
    token_matches as token_matches,
)
from .score import (
    Baseline as Baseline,
    BertScores as BertScores,
    bert_score as bert_score,
    estimate_baseline as estimate_baseline,
)
