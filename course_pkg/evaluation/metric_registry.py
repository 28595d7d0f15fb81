"""The metrics that the commands know: `course score` by their names, `course eval` by those of
their scores of answers, which a task gives under `metrics`.
"""

from course_pkg.evaluation.perplexity_metric import PERPLEXITY
from course_pkg.metrics.bertscore.bertscore_metric import BERTSCORE
from course_pkg.metrics.bleu import BLEU
from course_pkg.metrics.meteor.meteor_score import METEOR
from course_pkg.metrics.rouge.rouge_measures import ROUGE

METRICS = {metric.name: metric for metric in (BLEU, ROUGE, METEOR, BERTSCORE, PERPLEXITY)}
OF_ANSWERS = {name: score for m in METRICS.values() for name, score in m.of_answer.items()}
