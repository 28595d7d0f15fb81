"""A formula in TeX as a line of plain text, for excerpts of the search: `ΔW = α/r BA`.

What has no form on one line keeps its name. It covers what inline formulas use: fractions, roots,
accents, Greek letters, operators, indices. It does not check the TeX.
"""

from __future__ import annotations

import re
import unicodedata

TOKEN = re.compile(r"\\[A-Za-z]+\*?\s*|\\.|[{}]|\s+|.", re.DOTALL)
LETTERS = "alpha α beta β gamma γ delta δ epsilon ε varepsilon ε zeta ζ eta η theta θ lambda λ mu μ"
LETTERS += " nu ν xi ξ pi π rho ρ sigma σ tau τ phi φ varphi φ chi χ psi ψ omega ω Gamma Γ Delta Δ"
LETTERS += " Theta Θ Lambda Λ Sigma Σ Phi Φ Psi Ψ Omega Ω ell ℓ nabla ∇ partial ∂ infty ∞ sum ∑ "
LETTERS += "prod ∏ top ᵀ lVert ‖ rVert ‖ lvert | rvert | lceil ⌈ rceil ⌉ lfloor ⌊ rfloor ⌋ dots … "
LETTERS += "ldots … cdots … square □ circ ∘"
OPERATORS = "times × cdot · in ∈ le ≤ leq ≤ ge ≥ geq ≥ ne ≠ neq ≠ to → mid | odot ⊙ cup ∪ cap ∩ "
OPERATORS += "ll ≪ gg ≫ approx ≈ propto ∝ sim ~ iff ⇔ Rightarrow ⇒ pm ± bmod mod"
ACCENTS = {"hat": "\u0302", "bar": "\u0304", "tilde": "\u0303"}
DROPPED = re.compile(r"left|right|[bB]igg?[lrm]?|displaystyle|limits|quad|qquad")
FONTS = re.compile(r"math\w+|text\w*|operatorname|boldsymbol")


def pairs(text: str) -> dict[str, str]:
    names = text.split()
    return dict(zip(names[::2], names[1::2], strict=True))


SYMBOLS = pairs(LETTERS) | {name: f" {sign} " for name, sign in pairs(OPERATORS).items()}


def plain(tex: str) -> str:
    r"""The formula as plain text.

    >>> plain(r"\Delta W = \frac{\alpha}{r} B A"), plain(r"w_1, \dots \in \mathbb R^{d \times k}")
    ('ΔW = α/r B A', 'w_1, … ∈ R^(d × k)')
    >>> plain(r"\sqrt[N]{x + 1} \cdot F_{\text{mean}}"), plain(r"\hat y / \frac{a+b}2")
    ('√(x + 1) · F_mean', 'ŷ/(a+b)/2')
    >>> plain(r"\alpha / r"), plain(r"\log_2 \lVert Ax \rVert^2"), plain(r"Q K^\top")
    ('α/r', 'log_2 ‖Ax‖^2', 'Q Kᵀ')
    """
    text = " ".join(Reader(TOKEN.findall(tex)).group().split())
    text = re.sub(r" ?/ ?", "/", text)
    text = re.sub(r" (?=[_^⌉⌋]|‖[_^])|\^(?=ᵀ)", "", text)
    return unicodedata.normalize("NFC", text)


def wrapped(text: str) -> str:
    """In parentheses, unless it is one name or number."""
    text = " ".join(text.split())
    return text if re.fullmatch(r"[\w.…‖|]+'*|[\w.]*\(.*\)", text) else f"({text})"


class Reader:
    """Reads tokens from left to right."""

    def __init__(self, tokens: list[str]):
        self.tokens = tokens[::-1]

    def group(self) -> str:
        """Everything up to the closing brace, or to the end."""
        done = ""
        while self.tokens and self.tokens[-1] != "}":
            done += self.item()
        if self.tokens:
            self.tokens.pop()
        return done

    def argument(self) -> str:
        """The next group, command or character."""
        while self.tokens and self.tokens[-1].isspace():
            self.tokens.pop()
        return self.item() if self.tokens and self.tokens[-1] != "}" else ""

    def item(self) -> str:
        token = self.tokens.pop()
        if token == "{":
            return self.group()
        if token in "_^":
            return token + wrapped(self.argument())
        if not token.startswith("\\"):
            return token
        return self.command(token[1:].strip())

    def command(self, name: str) -> str:
        if name in ("frac", "tfrac", "dfrac"):
            over = wrapped(self.argument())
            return f"{over}/{wrapped(self.argument())} "
        if name == "sqrt":
            if self.tokens and self.tokens[-1] == "[":
                while self.tokens and self.tokens.pop() != "]":
                    pass
            return f"√{wrapped(self.argument())}"
        if name in ACCENTS:
            return self.argument() + ACCENTS[name]
        if FONTS.fullmatch(name):
            return self.argument()
        if name in SYMBOLS:
            return SYMBOLS[name]
        if DROPPED.fullmatch(name):
            return ""
        if name.isalpha():
            return f"{name} "  # log, max and what is not known
        return "" if name == "!" else " " if name in ",;: " else name
