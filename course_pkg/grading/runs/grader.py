"""From a folder of hand-ins to scores in the gradebook, none left without a state.

`grade` is the only one who holds the secret and writes the gradebook. A result is kept under the
address of all that it depends on, so a run that was broken off goes on where it stopped, and a run
over what is graded already does nothing.

Chapter: appendix/for-instructors.
"""

from pathlib import Path

from course_pkg.sandbox.probe import probe

from ..contract import registry
from ..feedback import results
from ..gradebook.gradebook import Book
from ..handins.intake import collect
from ..ledger.records import Record
from ..ledger.states import State
from ..ledger.vault import lock
from .batch import Batch
from .options import NoSandbox, Options, Show
from .sitting import Hall


def grade(course: Path, assignment: str, options: Options, show: Show) -> list[Record]:
    """Grade every hand-in of an assignment; the records in the order of the students' ids.

    course: the folder that holds nbgrader_config.py, exercises/ and solutions/. Raises NoSandbox,
    UnknownQuestion for the assignment, SourceError for the hand-ins, and VaultError, BookError or
    HandoutError for the course's own files; never for what a student handed in.
    """
    registry.ask_module(assignment)  # that there is one; what is slow to import waits
    if options.rules.sandboxed and not (state := probe()).ok:
        raise NoSandbox(state)
    with (
        lock(course, f"course grade {assignment}"),
        Hall(assignment, course, options.rules) as hall,
        Book(course) as book,
    ):
        everyone = collect(options.submitted, assignment)
        chosen = everyone
        if options.students:
            chosen = collect(options.submitted, assignment, options.students)
        show.expect(len(chosen))
        batch = Batch(course, assignment, options, book, hall)
        records, waiting = {}, []
        for number, hand_in in enumerate(chosen):
            known = None if options.regrade else batch.known(hand_in)
            if known is None:
                waiting.append((number, hand_in))
            else:
                records[number] = known
                show.finished(known)
        for number, record in batch.run(waiting, show):
            records[number] = record
        found = [records[number] for number in sorted(records)]
        present = {hand_in.student for hand_in in everyone}
        latest = results.current(batch.store, assignment, present, found)
        results.write(course, assignment, latest, book.to_mark(assignment))
    return found


def trouble(records: list[Record]) -> int:
    """The exit code for a run's records: 0 all graded, 1 some to look at, 4 the grader failed.

    >>> trouble([])
    0
    """
    states = {record.state for record in records}
    if State.GRADING_ERROR in states:
        return 4
    return int(bool(states - {State.GRADED}))
