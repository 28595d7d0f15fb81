"""A ring all-reduce: what each rank holds and sends, by step."""

from course_pkg.acceleration.parallel.ring_steps import RingState, ring_states
from course_pkg.pages.labs.playgrounds.markup import (
    Safe,
    chip,
    element,
    joined,
    number,
    paragraph,
    table,
)
from course_pkg.pages.labs.playgrounds.playground import (
    Field,
    Playground,
    WrongInput,
    row_of_numbers,
)

MOST_RANKS = 6
MOST_NUMBERS = 12


def rank_numbers(lines: list[str]) -> list[list[float]]:
    """The numbers of each rank, a line each, all equally many."""
    if not 2 <= len(lines) <= MOST_RANKS:
        raise WrongInput(f"Ranks: expected 2 to {MOST_RANKS} lines, but {len(lines)} were given")
    ranks = [row_of_numbers(line, "Ranks") for line in lines]
    longest = max(map(len, ranks))
    shortest = min(map(len, ranks))
    if longest != shortest or longest > MOST_NUMBERS:
        raise WrongInput(
            f"Ranks: expected 1 to {MOST_NUMBERS} numbers on every line, and equally many, but "
            f"there are {shortest} to {longest}"
        )
    return ranks


def view(lines: list[str], done: int) -> str:
    """What each rank holds after some steps, and what it sends next."""
    ranks = rank_numbers(lines)
    states = ring_states(ranks)
    steps = len(states) - 1
    done = min(done, steps)
    state = states[done]
    summands = ring_states([[1.0] * len(ranks)] * len(ranks))[done]  # in each chunk
    rows = []
    for rank, chunks in enumerate(state.held):
        sent = state.sending[rank] if state.sending else None
        row = [
            held(chunk, summands.held[rank][at] == (len(ranks),), at == sent)
            for at, chunk in enumerate(chunks)
        ]
        rows.append((f"rank {rank}", *row))
    head = ("", *(f"chunk {at}" for at in range(len(ranks))))
    return joined(
        [
            element("p", element("b", f"After {done} of {steps} steps. "), says(state)),
            table(head, rows),
            paragraph(cost(len(ranks), len(ranks[0]), steps)),
        ]
    )


def held(chunk: tuple[float, ...], whole: bool, sent: bool) -> Safe:
    """A chunk of one rank, with a mark if it is the sum over all ranks, an arrow if it is sent."""
    text = " ".join(number(value, 7) for value in chunk) or "empty"
    return chip(f"{text} ↓" if sent else text, "match" if chunk and whole else "none")


def says(state: RingState) -> str:
    """What the next step does."""
    if not state.sending:
        return "Every rank has all sums, marked ✓."
    half = "reduce-scatter" if state.adds else "all-gather"
    then = "adds it to its own" if state.adds else "keeps it"
    return (
        f"Next, in the {half}: each rank sends the chunk with an arrow to the next rank, which "
        f"{then}. The last rank sends to rank 0."
    )


def cost(ranks: int, length: int, steps: int) -> str:
    """What a rank sends in all, against sending all its numbers to every other rank."""
    share_of_all = 2 * (ranks - 1) / ranks
    share = f"2({ranks} − 1)/{ranks} = {number(share_of_all)}".replace(" ", "\N{NO-BREAK SPACE}")
    return (
        f"Each rank sends {steps} messages. For each of its {length} numbers, it sends on average "
        f"{share}. To send all its numbers to every other rank, it would take {ranks - 1} for each."
    )


PLAYGROUND = Playground(
    "ring",
    "A ring all-reduce",
    (
        Field(
            "lines",
            f"2 to {MOST_RANKS} ranks, a line of numbers for each",
            "lines",
            "1 2 3 4\n10 20 30 40\n100 200 300 400\n1000 2000 3000 4000",
        ),
        Field("done", "Steps done", "integer", "2", low=0, high=2 * (MOST_RANKS - 1)),
    ),
    view,
)
