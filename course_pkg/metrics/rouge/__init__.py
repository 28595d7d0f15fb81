"""ROUGE: n-grams, common subsequences and skip-bigrams of a reference, with one shared F."""

from course_pkg.metrics.rouge.counts import Overlap, RougeScore, f_measure
from course_pkg.metrics.rouge.lcs import lcs_length, lcs_positions, lcs_table
from course_pkg.metrics.rouge.options import RougeOptions, rouge_tokens
from course_pkg.metrics.rouge.rouge_measures import (
    rouge_l,
    rouge_lsum,
    rouge_n,
    rouge_s,
    rouge_su,
    rouge_w,
)
