"""Prompts, scores, and faults of chains."""

from course_pkg.studies.domains.reasoning_items import (
    ReasoningItem,
    check_equations,
    coin_flip_items,
    first_fault,
    last_letter_items,
    reasoning_prompt,
    score_reasoning,
    word_problem_items,
)
from tests.refusals import require_refusals

SUM = ReasoningItem("sum", "1 + 2 + 3?", "1 + 2 = 3. 3 + 3 = 6.", "6", 2)
LETTERS = ReasoningItem("last letters", "Amy Brown?", "Amy ends in y. Brown ends in n.", "yn", 2)


def test_gold_texts_score_and_texts_of_other_items_do_not():
    for style in ("direct", "reasoned"):
        for make in (last_letter_items, coin_flip_items, word_problem_items):
            items = make(30, 3, seed=0)
            texts = [getattr(item, style) for item in items]
            assert score_reasoning(items, texts) == [1] * 30
            moved = score_reasoning(items, texts[1:] + texts[:1])
            same = [a.answer == b.answer for a, b in zip(items, items[1:] + items[:1], strict=True)]
            assert moved == list(map(int, same))


def test_what_counts_as_the_answer():
    for item, text, score in (
        (LETTERS, "The answer is YN.", 1),
        (LETTERS, "the answer is: yn\nQuestion:", 1),
        (LETTERS, "yn", 0),  # nothing is stated
        (LETTERS, "The answer is y n.", 0),
        (LETTERS, "The answer is yn. No, the answer is ny.", 0),  # the last one counts
        (SUM, "The answer is 6.0.", 1),
        (SUM, "The answer is 6 apples.", 1),
        (SUM, "1 + 2 = 3. 3 + 3 = 6.", 1),  # the last number
        (SUM, "The answer is 16.", 0),
        (SUM, "The answer is unknown.", 0),
        (SUM, "", 0),
    ):
        assert score_reasoning([item], [text]) == [score]


def test_the_first_fault_is_named():
    for text, fault, step in (
        ("Amy ends in y. Brown ends in n. The answer is yn.", "none", 2),
        ("Amy ends in  y.\nBrown ends in n. The answer is y n.", "none", 2),
        ("Amy ends in m. Brown ends in n. The answer is mn.", "wrong step", 1),
        ("Amy ends in y. Brown ends in w. The answer is yn.", "wrong step", 2),
        ("Amy ends in y. The answer is y.", "too few steps", 2),
        ("The answer is yn.", "too few steps", 1),
        ("Amy ends in y. Brown ends in n. Amy ends in y. The answer is yny.", "too many steps", 3),
        ("Amy ends in y. Brown ends in n. The answer is ny.", "wrong answer", 2),
        ("Amy ends in y. Brown ends in n.", "wrong answer", 2),
        ("", "too few steps", 1),
    ):
        found = first_fault(LETTERS, text)
        assert (found.name, found.step) == (fault, step)


def test_equations_are_recomputed_exactly():
    text = "7 - 9 = -2, 0.1 + 0.2 = 0.3; 6/4=1.5. But 1 / 3 = 0.33, 5 / 0 = 0 and 2 * 3 = 5."
    assert check_equations(text) == [True, True, True, False, False, False]
    assert check_equations("No equation here.") == []


def test_both_styles_differ_only_in_the_answers_of_the_examples():
    asked = last_letter_items(1, 3, seed=0)[0]
    prompts = {style: reasoning_prompt(asked, [LETTERS], style) for style in ("direct", "reasoned")}
    assert prompts["reasoned"].replace(f"{LETTERS.chain} ", "") == prompts["direct"]
    assert prompts["direct"].endswith(f"Question: {asked.question}\nAnswer:")


def test_bad_arguments_are_refused():
    require_refusals(
        (lambda: reasoning_prompt(SUM, [SUM]), "is also an example"),
        (lambda: reasoning_prompt(SUM, style="cot"), "style must be one of direct, reasoned"),
        (lambda: score_reasoning([SUM], []), "1 items and 0 texts"),
        (lambda: first_fault(SUM, None), "text must be a string"),
        errors=(TypeError, ValueError),
    )
