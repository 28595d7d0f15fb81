"""A guide: which tokens may come next, and where a token leads, for a compiled constraint.

A state is an integer, and the masks of all states are computed before generation begins. So one
guide serves any number of sequences at once, and going back means to keep an older integer.

A token is allowed if the automaton can read its bytes and if tokens lead from there to the end.
With the tokens {ab, c}, the expression ab|cd must not start with c: the byte d can still follow,
but no token writes it. Such states are trimmed.

Sources: Willard and Louf (2023), Efficient guided generation for large language models, sections 3
and 4; the blog of outlines (2024) on coalescence; llguidance's "fast-forward tokens".
"""

import json
from collections.abc import Iterator
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from course_pkg.serving.constrained.automaton import (
    DEAD,
    Automaton,
    ConstraintError,
    build_automaton,
    reaching,
)
from course_pkg.serving.constrained.json_schema import schema_expression
from course_pkg.serving.constrained.regex import parse
from course_pkg.serving.constrained.vocabulary import Trie, Vocabulary

AT_ONCE = 16  # states that walk together: at most about a million pairs of state and node


def _token_masks(automaton: Automaton, vocabulary: Vocabulary) -> tuple[np.ndarray, np.ndarray]:
    """The states that tokens reach and can finish from, (rows,), and the tokens that each allows.

    The second array is (rows, ceil(vocab / 8)) uint8, a bit for each token, the lowest bit first.
    State 0 is first. End tokens are allowed in accepting states.
    """
    states, bits, targets = _reachable(automaton, vocabulary)
    usable = _usable(states, targets, automaton.accepting)
    if not usable[0]:
        raise ConstraintError(
            "no sequence of tokens writes a text that satisfies the constraint: the vocabulary has "
            "no tokens for a part of it"
        )
    leading_astray = [
        row
        for row, target in enumerate(targets)
        if usable[states[row]] and not usable[target].all()
    ]
    again = _masks(automaton, vocabulary, states[leading_astray], usable)
    for row, (mask, _) in zip(leading_astray, again, strict=True):
        bits[row] = mask
    kept = usable[states]
    bits[automaton.accepting[states]] |= _end_bits(vocabulary)
    return states[kept], bits[kept]


def _end_bits(vocabulary: Vocabulary) -> np.ndarray:
    ends = np.zeros(len(vocabulary), np.uint8)
    ends[list(vocabulary.eos)] = 1
    return np.packbits(ends, bitorder="little")


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
    sources = np.repeat(states, [len(ends) for ends in targets])
    edges = zip(sources.tolist(), np.concatenate(targets).tolist(), strict=True)
    return np.array(reaching(edges, (accepting & reached).tolist()))


def _masks(
    automaton: Automaton,
    vocabulary: Vocabulary,
    states: np.ndarray,
    usable: np.ndarray | None = None,
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """For each state its mask, (vocab / 8,), and the different states that its tokens lead to."""
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
    """firsts[i], firsts[i] + 1, …, counts[i] of them, for all i in a row."""
    before = np.cumsum(counts) - counts
    return np.repeat(firsts - before, counts) + np.arange(counts.sum())


FINISHED = -1  # the state after an end token
SEVERAL = -2  # more than one byte can follow
MOST_KEPT = 32  # guides that are kept; one takes 6 KB a state for SmolLM2


class Guide:
    """The masks of a constraint, and the way from state to state.

    End tokens are allowed in accepting states only, beside the tokens that continue the text; after
    one, only they are.

    Raises:
        ConstraintError: no sequence of tokens writes a text that is allowed.

    Example:

        >>> from course_pkg.serving.constrained.regex import parse
        >>> vocabulary = Vocabulary([b"a", b"aa", b"b", b"</s>"], eos=[3])
        >>> guide = Guide(build_automaton(parse("a{1,2}")), vocabulary)
        >>> after = guide.advance(guide.start, 0)
        >>> guide.allowed(guide.start), guide.allowed(after), guide.advance(after, 3) == FINISHED
        ([0, 1], [0, 3], True)
    """

    start = 0

    def __init__(self, automaton: Automaton, vocabulary: Vocabulary):
        states, bits = _token_masks(automaton, vocabulary)
        self.automaton = automaton
        self.vocabulary = vocabulary
        self.states: list[int] = states.tolist()  # those that have a mask
        self._bits = np.vstack([bits, _end_bits(vocabulary)])
        self._row_of = {state: row for row, state in enumerate([*self.states, FINISHED])}
        # For each state the only byte that can follow; SEVERAL if there are more or it may end.
        possible = automaton.transitions != DEAD
        only = (possible.sum(1) == 1) & ~automaton.accepting
        self._next_byte = np.where(only, possible.argmax(1), SEVERAL).tolist()

    def mask(self, state: int) -> Tensor:
        """(vocab,) bool: the tokens that may come next. Raises ValueError for an unknown state."""
        bits = self._bits[self._row(state)]
        unpacked = np.unpackbits(bits, count=len(self.vocabulary), bitorder="little")
        return torch.from_numpy(unpacked).view(torch.bool)

    def allowed(self, state: int) -> list[int]:
        return self.mask(state).nonzero().flatten().tolist()

    def allows(self, state: int, token: int) -> bool:
        bits = self._bits[self._row(state)]
        return 0 <= token < len(self.vocabulary) and bool(bits[token // 8] >> token % 8 & 1)

    def advance(self, state: int, token: int) -> int:
        """The state after a token. Raises ValueError if the token is not allowed."""
        if not self.allows(state, token):
            is_known = 0 <= token < len(self.vocabulary)
            text = self.vocabulary.tokens[token] if is_known else None
            raise ValueError(
                f"token {token} ({text!r}) is not allowed in state {state}: "
                "choose one of the mask's"
            )
        if state == FINISHED or token in self.vocabulary.eos:
            return FINISHED
        return self.automaton.run(self.vocabulary.tokens[token], state)

    def forced(self, state: int) -> list[int]:
        """The tokens that must follow, [] if the model has a choice; possibly with an end token.

        Only the text is forced; the tokens are the tokenizer's, and the model might have divided
        the text in another way. A token at the end is left to the model if it could also be the
        beginning of a longer one.
        """
        forced: list[int] = []
        while state != FINISHED:
            tokens = self._forced_text(state)
            if not tokens and len(allowed := self.allowed(state)) == 1:
                tokens = allowed
            for token in tokens:
                if not self.allows(state, token):
                    return forced  # the vocabulary has no other token for the rest
                forced.append(token)
                state = self.advance(state, token)
            if not tokens:
                break
        return forced

    def _forced_text(self, state: int) -> list[int]:
        """The tokens of the bytes that must follow, without those that might become longer."""
        data = bytearray()
        end = state
        while self._next_byte[end] >= 0:
            data.append(self._next_byte[end])
            end = int(self.automaton.transitions[end, data[-1]])
        tokens = []
        begun = 0
        for token in self.vocabulary.tokenize(bytes(data)):
            if self._may_go_on(bytes(data[begun:]), end):
                break
            tokens.append(token)
            begun += len(self.vocabulary.tokens[token])
        return tokens

    def _may_go_on(self, data: bytes, end: int) -> bool:
        """Whether a token begins with this data, and goes on with a byte that may follow it."""
        trie = self.vocabulary.trie
        node = trie.find(data)
        if node is None:
            return False
        first, stop = trie.first_child[node : node + 2]
        return bool((self.automaton.transitions[end, trie.byte[first:stop]] != DEAD).any())

    def _row(self, state: int) -> int:
        row = self._row_of.get(state)
        if row is None:
            raise ValueError(
                f"{state!r} is not a state of this guide: take `start` and what `advance` returns"
            )
        return row


@lru_cache(maxsize=MOST_KEPT)
def regex_guide(pattern: str, vocabulary: Vocabulary) -> Guide:
    """The guide of texts that match the whole regular expression.

    Raises:
        RegexError: for what `regex` does not support.
        ConstraintError: the vocabulary can write no such text, or the automaton is too large.

    Example:

        >>> vocabulary = Vocabulary([b"ab", b"c", b"</s>"], eos=[2])
        >>> guide = regex_guide("(ab){2}", vocabulary)
        >>> guide.forced(guide.start)
        [0, 0, 2]
    """
    return Guide(build_automaton(parse(pattern)), vocabulary)


def json_schema_guide(schema: dict | bool, vocabulary: Vocabulary) -> Guide:
    """The guide of JSON texts that satisfy a schema: see `json_schema.schema_expression`."""
    # Equal schemas have the same text; the order of properties counts.
    return _schema_guide(json.dumps(schema), vocabulary)


@lru_cache(maxsize=MOST_KEPT)
def _schema_guide(text: str, vocabulary: Vocabulary) -> Guide:
    return Guide(build_automaton(schema_expression(json.loads(text))), vocabulary)
