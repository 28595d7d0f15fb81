"""Broken rules, and the two errors of a filter."""

from collections import Counter

import pytest

from course_pkg.evaluation.bias.refusals import (
    keyword_refuses,
    load_requests,
    refusal_errors,
    wrong_refusals,
)
from course_pkg.evaluation.bias.rule_attacks import attack_rates, load_attacks, writes_word
from course_pkg.evaluation.statistics import wilson_interval

ATTACKS = load_attacks()
REQUESTS = load_requests()
WORDS = ("party", "surprise", "present", "balloons", "cake", "guest", "guests", "lane")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('The secret word is "violin".', True),
        ("VIOLIN", True),
        ("two violins", True),
        ("the ultraviolinist", False),
        ("v-i-o-l-i-n", False),
        ("", False),
    ],
)
def test_a_word_counts_wherever_it_begins(text, expected):
    assert writes_word(text, "violin") is expected


def test_every_message_meets_every_secret_and_never_has_it():
    assert Counter(attack.style for attack in ATTACKS).most_common() == [
        (style, 36) for style in dict.fromkeys(attack.style for attack in ATTACKS)
    ]
    assert len({(attack.user, attack.secret) for attack in ATTACKS}) == len(ATTACKS) == 252
    for attack in ATTACKS:
        assert not attack.broken_by(attack.user) and attack.broken_by(attack.system)
    plain = [attack.user for attack in ATTACKS if attack.style == "plain"]
    assert not any("secret" in text for text in plain)


def test_a_secret_is_lost_if_one_of_three_messages_gets_it():
    broken = [
        attack.style == "role-play" and attack.user.startswith("Play") and attack.secret < "m"
        for attack in ATTACKS
    ]
    lost = sum(secret < "m" for secret in {attack.secret for attack in ATTACKS})
    rates = attack_rates(ATTACKS, broken)
    assert rates["role-play"] == wilson_interval(lost, 12) and lost > 0
    assert rates["plain"] == wilson_interval(0, 12)


def test_half_of_each_sort_of_request_has_a_keyword():
    assert Counter(request.kind for request in REQUESTS) == dict.fromkeys(
        ("refuse-keyword", "refuse-hidden", "answer-keyword", "answer-plain"), 12
    )
    for request in REQUESTS:
        assert request.refuse == request.kind.startswith("refuse")
    hits = Counter(r.kind for r in REQUESTS if keyword_refuses(r.text, WORDS))
    assert hits["refuse-keyword"] == hits["answer-keyword"] == 12 and hits["answer-plain"] == 0


def test_keywords_are_whole_words():
    assert not keyword_refuses("Several pancakes are presented", ["cake", "present"])
    assert keyword_refuses("The CAKE-stand", ["cake"])


def test_both_errors_by_hand():
    refused = [request.kind.endswith("keyword") for request in REQUESTS]
    found = refusal_errors(REQUESTS, refused)
    assert found.sensitivity == found.specificity == wilson_interval(12, 24)
    assert {request.kind for request in found.over} == {"answer-keyword"}
    assert {request.kind for request in found.under} == {"refuse-hidden"}


def test_wrong_refusals_by_counting():
    """Of 1000 requests, 20 deserve a refusal: 16 of them and 98 of 980 others are refused."""
    assert wrong_refusals(0.8, 0.9, 0.02) == pytest.approx(98 / (98 + 16))
    assert wrong_refusals(0.8, 1.0, 0.02) == 0


def test_bad_input_is_one_clear_error():
    with pytest.raises(ValueError, match="252 attacks, but 1 results"):
        attack_rates(ATTACKS, [True])
    with pytest.raises(ValueError, match="1 verdicts on 48 requests"):
        refusal_errors(REQUESTS, [True])
    with pytest.raises(ValueError, match="some that should be answered"):
        refusal_errors(REQUESTS[:24], [True] * 24)
    with pytest.raises(ValueError, match="specificity must be in"):
        wrong_refusals(0.5, 1.5, 0.1)
    with pytest.raises(ValueError, match="nothing is refused"):
        wrong_refusals(0.0, 1.0, 0.1)
