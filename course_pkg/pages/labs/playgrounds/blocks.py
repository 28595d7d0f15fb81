"""The block manager: commands, and the pool after each."""

from itertools import count

from course_pkg.pages.labs.playgrounds.markup import Safe, element, joined, paragraph, table
from course_pkg.pages.labs.playgrounds.playground import Field, Playground, WrongInput
from course_pkg.serving.block_manager import BlockManager
from course_pkg.serving.block_pool import OutOfBlocksError
from course_pkg.serving.sequence import Sequence

MOST_COMMANDS = 12
MOST_TOKENS = 200
USAGE = "“new a 10”, “new b 10 like a”, “more a 3”, “fork a b” or “free a”"


class Pool:
    """Sequences with names, in a pool of blocks."""

    def __init__(self, blocks: int, size: int) -> None:
        self.manager = BlockManager(blocks, size)
        self.sequences: dict[str, Sequence] = {}
        self.fresh = count(1000)  # tokens that are nowhere else

    def do(self, command: str) -> str:
        """Carry out a command; returns what it did. Raises WrongInput for one that can't be."""
        match command.split():
            case ["new", name, tokens]:
                return self._new(name, [next(self.fresh) for _ in range(self._number(tokens))])
            case ["new", name, tokens, "like", other]:
                wanted = self._number(tokens)
                same = self._get(other).tokens[:wanted]
                rest = [next(self.fresh) for _ in range(wanted - len(same))]
                return self._new(name, [*same, *rest])
            case ["more", name, tokens]:
                sequence = self._get(name)
                added = self._number(tokens)
                sequence.tokens += [next(self.fresh) for _ in range(added)]
                copy = self.manager.append(sequence, added)
                return f"block {copy[0]} is shared, so it is copied to {copy[1]}" if copy else ""
            case ["fork", name, child]:
                parent = self._get(name)
                self._require_new(child)
                self.sequences[child] = parent.copy(child)
                self.manager.fork(parent, self.sequences[child])
                return "both use the same blocks"
            case ["free", name]:
                self.manager.free(self._get(name))
                del self.sequences[name]
                return ""
        raise WrongInput(f"Commands: expected {USAGE}, but {command[:40]!r} was given")

    def _new(self, name: str, tokens: list[int]) -> str:
        self._require_new(name)
        sequence = Sequence(name, tokens)
        hit = self.manager.allocate(sequence)
        self.sequences[name] = sequence
        return f"{hit} tokens are there already; at least the last is computed" if hit else ""

    def _number(self, text: str) -> int:
        if not text.isdecimal() or len(text) > 3 or not 1 <= int(text) <= MOST_TOKENS:
            wanted = f"a number of tokens from 1 to {MOST_TOKENS}"
            raise WrongInput(f"Commands: expected {wanted}, but {text[:20]!r} was given")
        return int(text)

    def _get(self, name: str) -> Sequence:
        if name not in self.sequences:
            known = ", ".join(self.sequences) or "none"
            raise WrongInput(f"Commands: there is no sequence {name[:20]!r} here; known: {known}")
        return self.sequences[name]

    def _require_new(self, name: str) -> None:
        if name in self.sequences:
            raise WrongInput(f"Commands: sequence {name[:20]!r} exists already: free it first")

    def cells(self) -> Safe:
        """The blocks of the pool, and who uses each."""
        users: dict[int, list[str]] = {}
        for name, sequence in self.sequences.items():
            for number in self.manager.table(sequence):
                users.setdefault(number, []).append(name)
        return joined(cell(number.number, users) for number in self.manager.pool.blocks)


def cell(number: int, users: dict[int, list[str]]) -> Safe:
    """One block: its number, and the names of those who use it."""
    names = users.get(number, [])
    kind = "none" if not names else "match" if len(names) == 1 else "shared"
    said = " ".join(names) or "free"
    inside = [element("small", number), element("span", said)]
    return element("span", *inside, class_=f"lab-block lab-{kind}")


def view(blocks: int, size: int, commands: list[str]) -> str:
    """The pool after each command."""
    if len(commands) > MOST_COMMANDS:
        raise WrongInput(f"Commands: at most {MOST_COMMANDS}, but {len(commands)} were given")
    pool = Pool(blocks, size)
    rows = []
    problem = None
    for command in commands:
        try:
            said = pool.do(command)
        except OutOfBlocksError:
            free = pool.manager.pool.num_free
            problem = paragraph(f"{command[:40]}: too few blocks are free ({free})", "lab-wrong")
            break
        except WrongInput as error:
            problem = paragraph(f"{command[:40]}: {error}", "lab-wrong")
            break
        note = [element("small", said, class_="lab-said")] if said else []
        rows.append((command, joined([pool.cells(), *note])))
    used = len(pool.manager.pool.blocks) - pool.manager.pool.num_free
    empty = pool.manager.empty_slots()
    said = (
        f"In use: {used} of {blocks} blocks. Of their {used * size} slots, {empty} are empty, all "
        "at the ends of sequences."
    )
    shown = table(("command", "blocks, and who uses them"), rows)
    return joined([shown, *([problem] if problem else []), paragraph(said)])


PLAYGROUND = Playground(
    "blocks",
    "A pool of blocks",
    (
        Field("blocks", "Blocks", "integer", "8", low=1, high=16),
        Field("size", "Tokens in a block", "integer", "4", low=1, high=32),
        Field(
            "commands",
            f"At most {MOST_COMMANDS} commands, one a line: new a 10, more a 3, fork a b, free a",
            "lines",
            "new a 10\nnew b 9 like a\nfork a c\nmore c 1\nfree a",
        ),
    ),
    view,
)
