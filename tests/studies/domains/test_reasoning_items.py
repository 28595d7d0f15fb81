"""Generated items and chains: right answers, balance, seeds, scores and faults."""

import re

import pytest

from course_pkg.studies.domains.reasoning_items import (
    ReasoningItem,
    check_equations,
    coin_flip_item,
    coin_flip_items,
    draw_distinct,
    first_fault,
    last_letter_item,
    last_letter_items,
    reasoning_prompt,
    score_reasoning,
    word_problem_items,
)
from tests.refusals import require_refusals

MAKERS = (last_letter_items, coin_flip_items, word_problem_items)
LENGTHS = (2, 3, 4)


def test_a_gold_chain_has_as_many_steps_as_the_item_and_no_fault():
    for length in LENGTHS:
        for make in MAKERS:
            for item in make(60, length, seed=length):
                assert item.steps == length == item.chain.count(". ") + 1
                assert first_fault(item, item.reasoned).name == "none"


def test_items_follow_from_the_seed_and_none_occurs_twice_or_among_those_to_avoid():
    for make in MAKERS:
        assert make(20, 3, seed=5) == make(20, 3, seed=5) != make(20, 3, seed=6)
        shown = make(200, 2, seed=0)
        tested = make(200, 2, seed=0, avoid=shown)  # the same seed would give the same items
        questions = [item.question for item in shown + tested]
        assert len(set(questions)) == 400


def test_the_letters_are_those_of_the_words_in_the_question():
    for item in last_letter_items(100, 4, seed=1):
        [words] = re.findall('"(.*)"', item.question)
        assert item.answer == "".join(word[-1] for word in words.split())
        assert [part[-1] for part in item.chain.rstrip(".").split(". ")] == list(item.answer)


def test_the_coin_is_heads_after_an_even_number_of_flips():
    for item in coin_flip_items(100, 4, seed=1):
        flips = len(re.findall(r"\w+ flips the coin", item.question))
        assert item.answer == ("no" if flips % 2 else "yes")
        last = item.chain.rstrip(".").split()[-1]
        assert last == ("tails" if flips % 2 else "heads")


def test_half_of_the_coins_are_heads_and_their_place_gives_nothing_away():
    for people in LENGTHS:
        answers = [item.answer for item in coin_flip_items(100, people, seed=people)]
        assert answers.count("yes") == 50
    # Balanced, but not alternating: the place in the list must not give the answer away.
    answers = [item.answer for item in coin_flip_items(100, 2, seed=0)]
    assert len(set(answers[:50:2])) == len(set(answers[1:50:2])) == 2


@pytest.mark.parametrize(("steps", "distractor"), [(1, False), (2, True), (5, True)])
def test_the_chain_of_a_word_problem_computes_the_answer_from_numbers_of_the_story(
    steps, distractor
):
    for item in word_problem_items(150, steps, seed=steps, distractor=distractor):
        assert check_equations(item.chain) == [True] * steps
        assert item.chain.endswith(f"= {item.answer}.")
        results = re.findall(r"= (\d+)", item.chain)
        used = re.findall(r"(\d+) [-+*/] (\d+)", item.chain)
        told = re.findall(r"\d+", item.question)
        assert [left for left, _ in used[1:]] == results[:-1]  # each step goes on from the last
        needed = [used[0][0], *(right for _, right in used)]
        extra = told.pop(1) if distractor else None
        assert (told, extra is not None) == (needed, distractor)


def test_a_word_problem_has_no_quantity_below_one_and_none_above_the_limit():
    for item in word_problem_items(300, 6, seed=0):
        numbers = [int(number) for number in re.findall(r"\d+", item.chain)]
        assert min(numbers) >= 1
        assert max(numbers) <= 200


def test_too_few_questions_are_an_error_that_says_so():
    item = ReasoningItem("one", "Only this?", "", "yes", 1)
    with pytest.raises(ValueError, match="only 1 of 2 different questions were found"):
        draw_distinct(lambda rng: item, 2, seed=0)


def test_bad_arguments_are_refused():
    require_refusals(
        (lambda: last_letter_items(3, 1, 0), "words must be an integer of at least 2"),
        (lambda: last_letter_item("Amy"), "words must be a list"),
        (lambda: last_letter_item(["Amy", "R2"]), "end in a letter"),
        (lambda: last_letter_items(3, 3, 0, names=["Amy", "Tom"]), "names has 2"),
        (lambda: coin_flip_items(3, 0, 0), "people must be"),
        (lambda: coin_flip_items(3, 3, 0, names=["Amy", "Tom"]), "names has 2"),
        (lambda: coin_flip_item([]), "turns is empty"),
        (lambda: coin_flip_item([("Amy", 1)]), "must be True or False"),
        (lambda: word_problem_items(3, 0, 0), "steps must be"),
        (lambda: word_problem_items(3, 1, 0, distractor="yes"), "distractor must be"),
        (lambda: reasoning_prompt(SUM, [SUM]), "is also an example"),
        (lambda: reasoning_prompt(SUM, style="cot"), "style must be one of direct, reasoned"),
        (lambda: score_reasoning([SUM], []), "1 items and 0 texts"),
        (lambda: first_fault(SUM, None), "text must be a string"),
        errors=(TypeError, ValueError),
    )


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
