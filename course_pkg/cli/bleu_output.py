"""How `course score bleu` prints: as sacrebleu does, so that programs can read either.

Chapter: metrics/bleu-comparing.
"""

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import typer

from course_pkg.cli.score_options import Format

if TYPE_CHECKING:
    from course_pkg.metrics.bleu import BleuScore

SIGNIFICANT = 0.05  # p-values below it get a star


@dataclass(frozen=True)
class BleuPrinter:
    """Prints scores. output: None for JSON. width: digits after the point. only: nothing else."""

    output: Format | None
    width: int
    only: bool

    def text(self, score: float) -> str:
        """A score from 0 to 100, for one in [0, 1]."""
        return f"{100 * score:z.{self.width}f}"

    def details(self, result: "BleuScore") -> str:
        """The precisions, the penalty and the lengths behind a score."""
        precisions = "/".join(f"{100 * p:.1f}" for p in result.precisions)
        c = result.hypothesis_length
        r = result.reference_length
        ratio = c / r if r else 0
        return (
            f"{precisions} (BP = {result.brevity_penalty:.3f} ratio = {ratio:.3f} "
            f"hyp_len = {c} ref_len = {r})"
        )

    def show(
        self,
        result: "BleuScore",
        signature: str,
        spread: tuple[float, float] | None = None,
        indent: int | None = 1,
    ) -> None:
        """Print one result. spread: the mean of drawn sets, and the margin. indent: of JSON."""
        shown = self.text(result.score)
        record = {"name": "BLEU", "score": float(self.text(result.score)), "signature": signature}
        if spread is not None:
            mean, margin = map(self.text, spread)
            around = f"μ = {mean} ± {margin}"
            shown += f" ({around})"
            record |= {"confidence_mean": float(mean), "confidence_var": float(margin)}
            record["confidence"] = around
        record["verbose_score"] = self.details(result)
        if self.only:
            typer.echo(shown)
        elif self.output is Format.text:
            typer.echo(f"BLEU|{signature} = {shown} {self.details(result)}")
        else:
            record |= dict(field.split(":", 1) for field in signature.split("|"))
            typer.echo(json.dumps(record, indent=indent, ensure_ascii=False))


def print_table(names: list[str], found: list[dict[str, Any]], width: int) -> None:
    """A line for each system: its score and, after a test, the mean of draws and the p-value."""
    longest = max(map(len, names))
    for name, values in zip(names, found, strict=True):
        line = f"{name:{longest}}  {values['score']:z.{width}f}"
        if values.get("mean") is not None:
            line += f" (μ = {values['mean']:z.{width}f} ± {values['ci']:z.{width}f})"
        if values.get("p_value") is not None:
            mark = "*" if values["p_value"] < SIGNIFICANT else ""
            line += f"  p = {values['p_value']:.4f}{mark}"
        typer.echo(line)


def drawn_signature(signature: str, kind: str, samples: int, seed: int) -> str:
    """The signature with the draws behind the references, where sacrebleu has them."""
    first, rest = signature.split("|", 1)
    return f"{first}|{kind}:{samples}|seed:{seed}|{rest}"
