from .bertscore import Baseline as Baseline
from .bertscore import BertScores as BertScores
from .bertscore import IdfWeights as IdfWeights
from .bertscore import TokenMatches as TokenMatches
from .bertscore import bert_score as bert_score
from .bertscore import estimate_baseline as estimate_baseline
from .bertscore import idf_weights as idf_weights
from .bertscore import token_matches as token_matches
