"""`bleu`, beside the student: the small cases for paper, and how an answer is called.

Texts cross as lists of tokens, so that no tokenizer matters. It imports no reference
implementation, and knows no right answer.

Chapter: exercises.
"""

from typing import Any

from course_pkg.grading.asking import call_with

MASKED = ("course_pkg.metrics", "sacrebleu", "nltk")  # the grader shows stubs instead

NOUNS = ("cat", "dog", "fox", "boy", "girl", "horse", "child", "farmer")
PLACES = ("mat", "bench", "table", "roof", "bridge", "stairs", "gate", "path")
VERBS = ("sat", "slept", "stood", "waited", "lay", "rested")
DOING = ("sitting", "sleeping", "standing", "waiting", "lying", "resting")
PREPOSITIONS = ("on", "under", "near", "behind", "beside", "by")
OF_NOUNS = ("big", "small", "young", "quiet", "hungry")
OF_PLACES = ("red", "wooden", "broken", "narrow")
ENDS = ("today", "again", "outside", "alone")
MORE = ("", "indeed", "very much")


def _pick(rng: Any, words: tuple[str, ...]) -> str:
    return words[int(rng.integers(len(words)))]


def one_reference(rng: Any) -> dict[str, str]:
    """A reference and a shorter candidate, of at most nine words.

    >>> one_reference(None)["candidate"]
    'a cat sat on mat'
    """
    if rng is None:
        return {"reference": "the cat sat on the mat", "candidate": "a cat sat on mat"}
    while True:
        adjective, wide, end = (int(rng.integers(n)) for n in (2, 3, 4))
        one, other = _pick(rng, OF_NOUNS), _pick(rng, OF_PLACES)
        last, instead = rng.permutation(ENDS)[:2].tolist()
        core = f"{_pick(rng, NOUNS)} {_pick(rng, VERBS)} {_pick(rng, PREPOSITIONS)}"
        place = _pick(rng, PLACES)
        reference = ["the", one if adjective else "", core, "the", other if wide else "", place]
        candidate = ["a", core, other if wide == 1 else "", place]
        reference.append(last if end else "")
        candidate.append(("", last, "", instead)[end])
        texts = {"reference": _sentence(reference), "candidate": _sentence(candidate)}
        words, letters = (
            len(cut(texts["candidate"])) / len(cut(texts["reference"])) for cut in (str.split, str)
        )
        if abs(words - letters) > 0.02:  # or lengths in words and in letters have one ratio
            return texts


def two_references(rng: Any) -> dict[str, Any]:
    """A candidate that repeats itself, with a shorter reference and a longer one that is closer.

    >>> two_references(None)["candidate"]
    'the cat the cat on the mat'
    """
    if rng is None:
        references = ["there is a black cat on the mat", "the cat likes the mat"]
        return {"candidate": "the cat the cat on the mat", "references": references}
    noun, place, preposition = (_pick(rng, words) for words in (NOUNS, PLACES, PREPOSITIONS))
    doing = _pick(rng, ("", *DOING)) if rng.integers(3) else ""
    end = _pick(rng, ENDS)
    in_both, in_candidate = ((False, False), (False, True), (True, True))[int(rng.integers(3))]
    tail = [doing, preposition, "the", place]
    candidate = _sentence(["the", noun, "the", noun, *tail, end if in_candidate else ""])
    length = len(candidate.split())
    longer = 1 + int(rng.integers(min(2, length - 6)))  # words that the closer one has more
    fewer = longer + 1 + int(rng.integers(length - 5 - longer))  # that the other has less
    base = ["there is a", noun, *tail, end if in_both else ""]
    missing = length + longer - len(_sentence(base).split())
    base.insert(1, " ".join(rng.permutation(OF_NOUNS)[:missing].tolist()))
    references = [
        _sentence(base),
        _sentence(["the", noun, "likes the", place, MORE[length - fewer - 5]]),
    ]
    if rng.integers(2):
        references.reverse()
    return {"candidate": candidate, "references": references}


def _sentence(parts: list[str]) -> str:
    return " ".join(" ".join(parts).split())


def _as_it_is(answer: Any, inputs: Any) -> Any:
    return answer


def call_text(answer: Any, inputs: Any) -> Any:
    """Call the answer with one hypothesis, a list of tokens, and its references, a list of such."""
    return call_with(answer, inputs, "hypothesis", "references")


def call_closest(answer: Any, inputs: Any) -> Any:
    """Call `closest_length(hypothesis_length, reference_lengths)`."""
    return call_with(answer, inputs, "hypothesis_length", "reference_lengths")


def call_penalty(answer: Any, inputs: Any) -> Any:
    """Call `brevity_penalty(hypothesis_length, reference_length)`."""
    return answer(inputs["hypothesis_length"], inputs["reference_length"])


def call_corpus(answer: Any, inputs: Any) -> Any:
    """Call `corpus_bleu(hypotheses, references)`; references: one list of texts per hypothesis."""
    return call_with(answer, inputs, "hypotheses", "references")


CALLS = {
    "by-hand/counts": _as_it_is,
    "by-hand/brevity-penalty": _as_it_is,
    "by-hand/scores": _as_it_is,
    "by-hand/clipping": _as_it_is,
    "by-hand/two-references": _as_it_is,
    "counts": call_text,
    "closest-length": call_closest,
    "brevity-penalty": call_penalty,
    "corpus": call_corpus,
    "sentence": call_text,
}
VARIANTS = {"one-reference": one_reference, "two-references": two_references}
