"""The tokens that each state of an automaton allows, computed for all states together.

All states walk the trie of the vocabulary level by level. A prefix that a state cannot read is
given up once, for all tokens that begin with it; testing each token in each state would repeat it.

A token is allowed if the automaton can read its bytes and if tokens lead from there to the end.
The second condition is about tokens, not bytes. With the tokens {ab, c}, the expression ab|cd must
not start with c: the byte d can still follow, but no token writes it. Such states are trimmed.

Source: Willard and Louf (2023), Efficient guided generation for large language models, section 3,
whose index maps states to tokens by testing each token. Chapter: evaluation/constrained-output.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from course_pkg.serving.constrained.automaton import DEAD, Automaton, ConstraintError, reaching
from course_pkg.serving.constrained.vocabulary import Trie, Vocabulary

AT_ONCE = 16  # states that walk together: at most about a million pairs of state and node


@dataclass(frozen=True, eq=False)
class TokenMasks:
    """states: (rows,), those that tokens reach and that tokens can finish from; state 0 is first.

    bits: (rows, ceil(vocab / 8)) uint8, a bit for each allowed token, the lowest bit first; end
    tokens are allowed in accepting states.
    """

    states: np.ndarray
    bits: np.ndarray


def token_masks(automaton: Automaton, vocabulary: Vocabulary) -> TokenMasks:
    """The masks of all states, trimmed.

    Raises ConstraintError if no sequence of tokens writes a text that is allowed.

    >>> from course_pkg.serving.constrained.automaton import build_automaton
    >>> from course_pkg.serving.constrained.regex import parse
    >>> vocabulary = Vocabulary([b"ab", b"c", b"</s>"], eos=[2])
    >>> masks = token_masks(build_automaton(parse("ab|cd")), vocabulary)
    >>> np.unpackbits(masks.bits, axis=1, count=3, bitorder="little").tolist()
    [[1, 0, 0], [0, 0, 1]]
    """
    states, bits, targets = _reachable(automaton, vocabulary)
    usable = _usable(states, targets, automaton.accepting)
    if not usable[0]:
        raise ConstraintError(
            "no sequence of tokens writes a text that satisfies the constraint: the vocabulary has "
            "no tokens for a part of it"
        )
    leading_astray = [
        row for row, each in enumerate(targets) if usable[states[row]] and not usable[each].all()
    ]
    again = _masks(automaton, vocabulary, states[leading_astray], usable)
    for row, (mask, _) in zip(leading_astray, again, strict=True):
        bits[row] = mask
    kept = usable[states]
    ends = np.zeros(len(vocabulary), np.uint8)
    ends[list(vocabulary.eos)] = 1
    bits[automaton.accepting[states]] |= np.packbits(ends, bitorder="little")
    return TokenMasks(states[kept], bits[kept])


def _reachable(
    automaton: Automaton, vocabulary: Vocabulary
) -> tuple[np.ndarray, np.ndarray, list[np.ndarray]]:
    """The states that tokens reach, their masks before trimming, and where their tokens lead."""
    seen = np.zeros(len(automaton.accepting), bool)
    seen[0] = True
    states = [0]
    bits = []
    targets = []
    while len(bits) < len(states):
        for mask, reached in _masks(automaton, vocabulary, np.array(states[len(bits) :])):
            bits.append(mask)
            targets.append(reached)
            new = reached[~seen[reached]]
            seen[new] = True
            states += new.tolist()
    return np.array(states), np.array(bits), targets


def _usable(states: np.ndarray, targets: list[np.ndarray], accepting: np.ndarray) -> np.ndarray:
    """(automaton's states,) bool: those from which tokens lead to the end."""
    reached = np.zeros(len(accepting), bool)
    reached[states] = True
    sources = np.repeat(states, [len(each) for each in targets])
    edges = zip(sources.tolist(), np.concatenate(targets).tolist(), strict=True)
    return np.array(reaching(edges, (accepting & reached).tolist()))


def _masks(
    automaton: Automaton,
    vocabulary: Vocabulary,
    states: np.ndarray,
    usable: np.ndarray | None = None,
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """For each state its mask, (vocab / 8,), and the different states that its tokens lead to.

    usable: (automaton's states,) bool, where tokens may lead; anywhere if left out.
    """
    trie = vocabulary.trie
    for first in range(0, len(states), AT_ONCE):
        chunk = states[first : first + AT_ONCE]
        mask = np.zeros((len(chunk), len(vocabulary)), np.uint8)
        reached = np.zeros((len(chunk), len(automaton.accepting)), bool)
        for rows, nodes, ends in _walk(automaton, trie, chunk):
            if usable is not None:
                good = usable[ends]
                rows, nodes, ends = rows[good], nodes[good], ends[good]
            counts = trie.first_token[nodes + 1] - trie.first_token[nodes]
            tokens = trie.tokens[_spans(trie.first_token[nodes], counts)]
            mask[np.repeat(rows, counts), tokens] = 1
            reached[rows, ends] = True
        packed = np.packbits(mask, axis=1, bitorder="little")
        for row in range(len(chunk)):
            yield packed[row], np.flatnonzero(reached[row])


def _walk(
    automaton: Automaton, trie: Trie, states: np.ndarray
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """The nodes that end a token and that the states can read, a level of the trie at a time.

    Yields three arrays of equal length: the state's place in the list, the node, the state there.
    """
    ends_token = trie.first_token[1:] > trie.first_token[:-1]
    rows = np.arange(len(states))
    nodes = np.zeros(len(states), np.int64)
    at = states
    while len(nodes):
        counts = trie.first_child[nodes + 1] - trie.first_child[nodes]
        children = _spans(trie.first_child[nodes], counts)
        after = automaton.transitions[np.repeat(at, counts), trie.byte[children]]
        alive = np.flatnonzero(after != DEAD)
        rows = np.repeat(rows, counts)[alive]
        nodes = children[alive]
        at = after[alive]
        ending = np.flatnonzero(ends_token[nodes])
        yield rows[ending], nodes[ending], at[ending]


def _spans(firsts: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """firsts[i], firsts[i] + 1, …, counts[i] of them, for all i in a row.

    >>> _spans(np.array([5, 9]), np.array([3, 1])).tolist()
    [5, 6, 7, 9]
    """
    before = np.cumsum(counts) - counts
    return np.repeat(firsts - before, counts) + np.arange(counts.sum())
