"""Perplexity: from the probability of each token to one number."""

import math
import re
from fractions import Fraction

from course_pkg.metrics.perplexity.likelihood import Likelihood
from course_pkg.pages.labs.playgrounds.markup import (
    element,
    formula,
    joined,
    number,
    scientific,
    table,
)
from course_pkg.pages.labs.playgrounds.playground import Field, Playground, WrongInput

MOST = 12
# Few digits: a number such as 1e-9999999 would take long as a fraction.
NUMBER = re.compile(r"[0-9]{0,3}\.?[0-9]{1,20}(?:e-?[0-9]{1,2})?|[0-9]{1,9}/0*[1-9][0-9]{0,8}")


def probabilities(text: str) -> list[float]:
    """Numbers in (0, 1] from a text such as "0.5, 1/4 0.1"."""
    parts = text.replace(",", " ").split()
    if not 1 <= len(parts) <= MOST:
        raise WrongInput(
            f"Probabilities: expected 1 to {MOST} numbers, but {len(parts)} were given"
        )
    values = []
    for part in parts:
        value = float(Fraction(part)) if NUMBER.fullmatch(part) else math.nan
        if not 0 < value <= 1:
            raise WrongInput(
                f"Probabilities: expected numbers above 0 and at most 1, such as 0.25 or 1/4, "
                f"but {part[:20]!r} was given"
            )
        values.append(value)
    return values


def view(given: str) -> str:
    """Log-probabilities, their mean, and the perplexity."""
    values = probabilities(given)
    logs = [math.log(value) for value in values]
    whole = Likelihood.of(logs)
    by_token = [Likelihood.of([log]) for log in logs]
    rows = [
        (at, number(value), number(one.nll), number(one.bits_per_token))
        for at, (value, one) in enumerate(zip(values, by_token, strict=True), start=1)
    ]
    rows.append(("mean", "", number(whole.nll_per_token), number(whole.bits_per_token)))
    head = ("token", "probability", "−ln p (nats)", "−log₂ p (bits)")
    loss = number(whole.nll_per_token)
    result = whole.perplexity
    if math.isinf(result):
        raise WrongInput("Probabilities: so small that the perplexity is above 1e308; raise one")
    return joined(
        [
            table(head, rows),
            formula(rf"\mathrm{{PPL}} \approx e^{{{loss}}} \approx {scientific(result)}"),
            element(
                "p",
                "As uncertain as a choice among ",
                element("b", number(result, 3)),
                " equally likely tokens.",
            ),
        ]
    )


PLAYGROUND = Playground(
    "perplexity",
    "Perplexity by hand",
    (
        Field(
            "given",
            f"Probability of each token that came, at most {MOST}, separated by spaces",
            "text",
            "0.5 0.25 0.125 0.01",
        ),
    ),
    view,
)
