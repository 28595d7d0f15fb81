"""Perplexity of files, for the commands: of texts, or of answers given their prompts.

The losses of all tokens are summed first.
"""

from pathlib import Path
from typing import Annotated

from course_pkg.metrics.metric import Metric, MetricOption, SystemScores
from course_pkg.metrics.text_files import ScoredTexts, TextFileError

UNITS = ("perplexity", "tokens", "nll", "bits_per_byte")


def _score(
    texts: ScoredTexts,
    *,
    model: Annotated[str, MetricOption("Name, hub id or folder.")] = "smollm2-135m",
    adapter: Annotated[Path | None, MetricOption("Folder of an adapter.")] = None,
    bos: Annotated[bool, MetricOption("Put the BOS before each text.")] = False,
    stride: Annotated[
        int | None, MetricOption("For texts longer than the model's context.")
    ] = None,
    chat: Annotated[
        bool, MetricOption("Prompts and answers in the model's chat template.")
    ] = False,
    device: Annotated[str | None, MetricOption("Such as cuda, or auto [default: cpu]")] = None,
) -> SystemScores:
    if texts.prompts and (bos or stride is not None):
        raise TextFileError("--bos and --stride are for texts without prompts")
    if chat and not texts.prompts:
        raise TextFileError('--chat is for JSON lines with "prompt" and "answer"')
    import numpy as np

    from course_pkg.evaluation.answer_perplexity import answer_perplexity
    from course_pkg.evaluation.local_model import load_model
    from course_pkg.metrics.perplexity.likelihood import Likelihood
    from course_pkg.metrics.perplexity.text_perplexity import perplexity
    from course_pkg.metrics.significance import TextStatistics

    loaded = load_model(model, adapter, device=device)
    pair = (loaded.model, loaded.tokenizer)
    if texts.prompts:
        result = answer_perplexity(*pair, texts.prompts, texts.hypotheses, chat=chat)
    else:
        result = perplexity(*pair, texts.hypotheses, bos=bos, stride=stride)

    def of_sum(summed: np.ndarray) -> float:
        return Likelihood(nll=float(summed[0]), tokens=int(summed[1])).perplexity

    rows = np.array([(text.nll, text.tokens) for text in result.per_text])
    scored = "answer" if texts.prompts else "text"
    about = {"texts": len(rows), "scored": scored, "model": model, "adapter": adapter}
    return SystemScores(
        {unit: [getattr(text, unit) for text in result.per_text] for unit in UNITS},
        about | {"chat": chat, "bos": bos},
        main=("perplexity",),
        corpus={unit: getattr(result, unit) for unit in UNITS},
        statistics=TextStatistics(rows, of_sum),
    )


PERPLEXITY = Metric(
    "perplexity",
    "perplexity",
    """Perplexity of texts, or of answers given their prompts.

    A file has one text on each line, or JSON lines with "text", or with "prompt" and "answer": then
    only tokens of answers count, each given its prompt and what precedes it in the answer. The
    value is exp of the mean over all tokens; -sl prints each text's.

    Examples:

        course score perplexity texts.txt
        course score perplexity -i answers.jsonl --chat
        course score perplexity -i texts.txt --bos -sl
    """,
    _score,
    has_references=False,
)
