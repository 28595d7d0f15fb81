"""The commands `course score rouge`, `meteor` and `bertscore`: scores of files.

Each prints means over the texts with 95% bootstrap intervals, or with -sl the scores of each text.

Chapter: metrics/overview.
"""

from enum import StrEnum
from typing import Annotated

import typer

from course_pkg.cli.score_options import (
    Encoding,
    Format,
    Inputs,
    Lines,
    Only,
    Output,
    References,
    Samples,
    Seed,
    Width,
    one_system,
    print_means,
    print_rows,
    requests,
    signature,
)

Name = StrEnum("Name", ["rouge", "unicode", "whitespace", "char", "zh", "13a"])
Multi = StrEnum("Multi", ["best", "average", "pooled"])
Version = StrEnum("Version", ["2005", "1.5"])


def rouge(
    references: References = None,
    inputs: Inputs = None,
    kind: Annotated[
        list[str] | None,
        typer.Option(
            help="rouge1 to rouge9, rougeL, rougeLsum; repeatable [default: 1, 2, L, Lsum]"
        ),
    ] = None,
    stem: Annotated[bool, typer.Option("--stem", help="Compare words' Porter stems.")] = False,
    tokenize: Annotated[Name, typer.Option("--tokenize", "-tok")] = Name.rouge,
    multi: Annotated[Multi, typer.Option(help="How several references are combined.")] = Multi.best,
    sentence_level: Lines = False,
    confidence_n: Samples = 1000,
    seed: Seed = 12345,
    score_only: Only = False,
    width: Width = 4,
    output: Output = None,
    encoding: Encoding = "utf-8",
) -> None:
    """ROUGE of a system: means over its texts, from 0 to 1.

    Scores are those of rouge-score 0.1.2. For ROUGE-Lsum, each line of a text is a sentence, so a
    summary of several needs JSON lines with \\n. -b prints the F-measures.

    Examples:

        course score rouge ref.txt -i system.txt
        course score rouge -i system.jsonl --kind rouge2 --kind rougeLsum --stem
        course score rouge ref.txt -i system.txt -sl -b
    """
    from course_pkg.metrics.rouge.corpus import USUAL, corpus_rouge

    texts = one_system(inputs, references, encoding)
    settings = {"stem": stem, "tokenize": tokenize.value, "multi": multi.value}
    with requests():
        found = corpus_rouge(
            texts.hypotheses,
            texts.references,
            kind or USUAL,
            samples=confidence_n,
            seed=seed,
            **settings,
        )
    parts = ("fmeasure",) if score_only else ("precision", "recall", "fmeasure")
    if sentence_level:
        columns = {
            f"{name}_{part}": [getattr(score, part) for score in scores.per_text]
            for name, scores in found.items()
            for part in parts
        }
        print_rows(columns, output, width, score_only)
        return
    means = {f"{n}_{part}": getattr(scores, part) for n, scores in found.items() for part in parts}
    signed = signature(
        texts.references,
        bs=confidence_n,
        seed=seed,
        stem=stem,
        tok=tokenize.value,
        multi=multi.value,
    )
    print_means("ROUGE", means, signed, output, width, score_only)


def meteor(
    references: References = None,
    inputs: Inputs = None,
    version: Annotated[Version, typer.Option(help="The parameters.")] = Version["2005"],
    no_synonyms: Annotated[
        bool, typer.Option("--no-synonyms", help="Match words and stems only, without WordNet.")
    ] = False,
    sentence_level: Lines = False,
    confidence_n: Samples = 1000,
    seed: Seed = 12345,
    score_only: Only = False,
    width: Width = 4,
    output: Output = None,
    encoding: Encoding = "utf-8",
) -> None:
    """METEOR of a system: the mean over its texts, from 0 to 1.

    With version 2005, nltk's formula; where nltk aligns greedily, this finds the best alignment.

    Examples:

        course score meteor ref.txt -i system.txt --no-synonyms
        course score meteor -i system.jsonl --version 1.5 --no-synonyms -sl
    """
    from course_pkg.metrics.meteor import meteor as score

    texts = one_system(inputs, references, encoding)
    options = {"version": version.value, "synonyms": None if no_synonyms else "wordnet"}
    with requests():
        results = [
            score(text, group, **options)
            for text, group in zip(texts.hypotheses, texts.references, strict=True)
        ]
    synonyms = "synonym" in results[0].stages
    signed = signature(
        texts.references, bs=confidence_n, seed=seed, params=version.value, synonyms=synonyms
    )
    columns = {"meteor": [result.score for result in results]}
    _print(
        "METEOR", columns, signed, sentence_level, (confidence_n, seed), output, width, score_only
    )


def bertscore(
    references: References = None,
    inputs: Inputs = None,
    encoder: Annotated[str, typer.Option(help="minilm-l6, or a folder.")] = "minilm-l6",
    layer: Annotated[int | None, typer.Option(min=0, help="[default: the last]")] = None,
    idf: Annotated[
        bool, typer.Option("--idf", help="Weight tokens by the references' idf.")
    ] = False,
    sentence_level: Lines = False,
    confidence_n: Samples = 1000,
    seed: Seed = 12345,
    score_only: Only = False,
    width: Width = 4,
    output: Output = None,
    encoding: Encoding = "utf-8",
) -> None:
    """BERTScore of a system: means over its texts, mostly from 0 to 1.

    Scores of different encoders can't be compared. -b prints the F1.

    Examples:

        course score bertscore ref.txt -i system.txt
        course score bertscore -i system.jsonl --idf -sl
    """
    texts = one_system(inputs, references, encoding)  # before torch, which takes long to load
    from course_pkg.lm.encoder import load_encoder
    from course_pkg.metrics.bertscore import bert_score

    loaded = load_encoder(encoder)
    with requests():
        result = bert_score(texts.hypotheses, texts.references, loaded, layer=layer, idf=idf)
    names = ("f1",) if score_only else ("precision", "recall", "f1")
    columns = {name: getattr(result, name).tolist() for name in names}
    signed = signature(
        texts.references, bs=confidence_n, seed=seed, encoder=encoder, layer=result.layer, idf=idf
    )
    _print(
        "BERTScore",
        columns,
        signed,
        sentence_level,
        (confidence_n, seed),
        output,
        width,
        score_only,
    )


def _print(
    name: str,
    columns: dict[str, list[float]],
    signed: str,
    sentence_level: bool,
    draws: tuple[int, int],
    output: Format | None,
    width: int,
    only: bool,
) -> None:
    """Print each text's scores, or the means with intervals."""
    if sentence_level:
        print_rows(columns, output, width, only)
        return
    import numpy as np

    from course_pkg.metrics.significance import mean_intervals

    samples, seed = draws
    found = mean_intervals(np.array(list(columns.values())).T, samples=samples, seed=seed)
    print_means(name, dict(zip(columns, found, strict=True)), signed, output, width, only)
