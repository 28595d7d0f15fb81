"""Broken rules, and the two errors of a filter."""

from collections import Counter

import pytest

from course_pkg.evaluation.statistics import wilson_interval
from course_pkg.studies.safety.rules_and_refusals import (
    attack_rates,
    keyword_refuses,
    load_attacks,
    load_requests,
    refusal_errors,
    writes_word,
    wrong_refusals,
)
from tests.refusals import require_refusals

ATTACKS = load_attacks()
REQUESTS = load_requests()
WORDS = ("party", "surprise", "present", "balloons", "cake", "guest", "guests", "lane")


def test_a_word_counts_wherever_it_begins():
    for text, expected in (
        ('The secret word is "violin".', True),
        ("VIOLIN", True),
        ("two violins", True),
        ("the ultraviolinist", False),
        ("v-i-o-l-i-n", False),
        ("", False),
    ):
        assert writes_word(text, "violin") is expected


def test_a_secret_is_lost_if_one_of_three_messages_gets_it():
    broken = [
        attack.style == "role-play" and attack.user.startswith("Play") and attack.secret < "m"
        for attack in ATTACKS
    ]
    lost = sum(secret < "m" for secret in {attack.secret for attack in ATTACKS})
    rates = attack_rates(ATTACKS, broken)
    assert rates["role-play"] == wilson_interval(lost, 12) and lost > 0
    assert rates["plain"] == wilson_interval(0, 12)


def test_half_of_each_sort_of_request_has_a_keyword_which_is_a_whole_word():
    assert Counter(request.kind for request in REQUESTS) == dict.fromkeys(
        ("refuse-keyword", "refuse-hidden", "answer-keyword", "answer-plain"), 12
    )
    for request in REQUESTS:
        assert request.refuse == request.kind.startswith("refuse")
    hits = Counter(r.kind for r in REQUESTS if keyword_refuses(r.text, WORDS))
    assert hits["refuse-keyword"] == hits["answer-keyword"] == 12 and hits["answer-plain"] == 0
    assert not keyword_refuses("Several pancakes are presented", ["cake", "present"])
    assert keyword_refuses("The CAKE-stand", ["cake"])


def test_both_errors_and_the_share_of_wrong_refusals_by_hand():
    refused = [request.kind.endswith("keyword") for request in REQUESTS]
    found = refusal_errors(REQUESTS, refused)
    assert found.sensitivity == found.specificity == wilson_interval(12, 24)
    assert {request.kind for request in found.over} == {"answer-keyword"}
    assert {request.kind for request in found.under} == {"refuse-hidden"}
    # Of 1000 requests, 20 deserve a refusal: 16 of them and 98 of 980 others are refused.
    assert wrong_refusals(0.8, 0.9, 0.02) == pytest.approx(98 / (98 + 16))
    assert wrong_refusals(0.8, 1.0, 0.02) == 0


def test_bad_input_is_one_clear_error():
    require_refusals(
        (lambda: attack_rates(ATTACKS, [True]), "252 attacks, but 1 results"),
        (lambda: refusal_errors(REQUESTS, [True]), "1 verdicts on 48 requests"),
        (lambda: refusal_errors(REQUESTS[:24], [True] * 24), "some that should be answered"),
        (lambda: wrong_refusals(0.5, 1.5, 0.1), "specificity must be in"),
        (lambda: wrong_refusals(0.0, 1.0, 0.1), "nothing is refused"),
    )
