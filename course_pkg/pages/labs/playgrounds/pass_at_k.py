"""pass@k: samples, how many passed, and how many are drawn."""

from course_pkg.pages.labs.playgrounds.markup import Safe, element, joined, table
from course_pkg.pages.labs.playgrounds.playground import Field, Playground, WrongInput
from course_pkg.studies.code_benchmarks.pass_estimators import biased_pass_at_k, pass_at_k

MOST = 200
SHOWN = (1, 2, 5, 10, 20, 50, 100, 200)


def view(samples: int, correct: int, k: int) -> str:
    """Both estimates for this k, and for others."""
    if correct > samples:
        raise WrongInput(f"Passed: at most {samples} of {samples} samples can pass, not {correct}")
    if k > samples:
        raise WrongInput(f"k: {k} of {samples} samples can't be drawn; give more samples")
    ks = sorted({size for size in SHOWN if size <= samples} | {k})
    rows = []
    for size in ks:
        unbiased = pass_at_k(samples, correct, size)
        other = biased_pass_at_k(samples, correct, size)
        name = element("b", f"k = {size}") if size == k else f"k = {size}"
        rows.append((name, bar(unbiased), f"{unbiased:.4f}", f"{other:.4f}"))
    head = ("", "", "pass@k", "1−(1−c/n)ᵏ")
    said = (
        f"If {k} of the {samples} samples are drawn, at least one that passed is among them with a "
        f"probability of {pass_at_k(samples, correct, k):.4f}."
    )
    return joined([table(head, rows), element("p", said)])


def bar(share: float) -> Safe:
    """A share as a bar; the number stands beside it."""
    inside = element("span", "", style=f"width:{100 * share:.1f}%")
    return element("span", inside, class_="lab-share", aria_hidden="true")


PLAYGROUND = Playground(
    "pass-at-k",
    "pass@k of one problem",
    (
        Field("samples", "Samples, n", "integer", "10", low=1, high=MOST),
        Field("correct", "Passed, c", "integer", "3", low=0, high=MOST),
        Field("k", "Drawn, k", "integer", "5", low=1, high=MOST),
    ),
    view,
)
