"""ROUGE: shared n-grams, and the longest common subsequence."""

import warnings

from course_pkg.metrics.rouge.lcs import lcs_positions
from course_pkg.metrics.rouge.options import rouge_tokens
from course_pkg.metrics.rouge.rouge_measures import rouge_l, rouge_n
from course_pkg.pages.labs.playgrounds.markup import Safe, chip, joined, number, paragraph, table
from course_pkg.pages.labs.playgrounds.ngram_matches import matched
from course_pkg.pages.labs.playgrounds.playground import Field, Playground


def view(hypothesis: str, reference: str, stem: str) -> str:
    """The matches of ROUGE-1, ROUGE-2 and ROUGE-L, and their scores."""
    stemmed = stem == "yes"
    texts = hypothesis, reference
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # `lost` says it in the view
        return joined([*map(lost, texts), *scored(texts, stemmed)])


def lost(text: str) -> Safe:
    """A note on a text of which ROUGE's tokenizer leaves nothing, although it has letters."""
    if rouge_tokens(text) or not any(map(str.isalpha, text)):
        return Safe("")
    said = f"No token is left of “{text[:30]}”: ROUGE's tokenizer keeps only a–z and 0–9."
    return paragraph(said, "lab-wrong")


def scored(texts: tuple[str, str], stemmed: bool) -> list[Safe]:
    """The scores, and what of the hypothesis counts for each."""
    scores = {f"ROUGE-{n}": rouge_n(*texts, n=n, stem=stemmed) for n in (1, 2)}
    scores["ROUGE-L"] = rouge_l(*texts, stem=stemmed)
    rows = [
        (name, *(number(value) for value in (score.precision, score.recall, score.fmeasure)))
        for name, score in scores.items()
    ]
    tokens, others = (rouge_tokens(text, stem=stemmed) for text in texts)
    shown = [(f"ROUGE-{n}", grams(tokens, others, n)) for n in (1, 2)]
    shown.append(("ROUGE-L", subsequence(tokens, others)))
    what = "stems of the summary" if stemmed else "words of the summary"
    return [
        table(("measure", "precision", "recall", "F"), rows),
        table(("measure", f"{what} that count, marked"), shown),
    ]


def grams(tokens: list[str], reference: list[str], n: int) -> Safe:
    """The hypothesis's n-grams with a mark for those that count."""
    marked = matched(tokens, [reference], n)
    return joined((chip(text, kind) for text, kind in marked), " ") or Safe("none")


def subsequence(tokens: list[str], reference: list[str]) -> Safe:
    """The hypothesis's words with a mark for those of a longest common subsequence."""
    kept = {position for _, position in lcs_positions(reference, tokens)}
    marks = ("match" if at in kept else "none" for at in range(len(tokens)))
    return joined((chip(*pair) for pair in zip(tokens, marks, strict=True)), " ") or Safe("none")


PLAYGROUND = Playground(
    "rouge",
    "ROUGE of one summary",
    (
        Field("hypothesis", "Summary to judge", "text", "the cat sat on the mat"),
        Field("reference", "Reference", "text", "on the mat the cat is sitting"),
        Field("stem", "Compare stems", "choice", "no", options=("no", "yes")),
    ),
    view,
)
