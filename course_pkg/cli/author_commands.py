"""The commands of `course` for authors: release, author-check and bundle."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from course_pkg.cli.exits import NEEDS_A_LOOK


def add_to(app: typer.Typer) -> None:
    """Add the commands of this module."""
    for command in (release, author_check, bundle):
        app.command()(command)


def release(
    assignments: Annotated[list[str], typer.Argument(help="The assignments, such as lora-math.")],
) -> None:
    """Generate the students' notebooks from solutions/.

    They go to exercises/. Run this in the course's folder."""
    from course_pkg.grading.classroom.gradebook.keys import FOLDER
    from course_pkg.grading.classroom.release import release_assignment

    for assignment in assignments:
        added = _added_cells(assignment) if Path(FOLDER).is_dir() else []
        changed = release_assignment(Path.cwd(), assignment)
        typer.echo(f"exercises/{assignment}: {'released' if changed else 'unchanged'}")
        if added:
            typer.echo(
                f"new cells of graded submissions: {', '.join(added)}; points by hand are kept, "
                f"and the next `course grade {shlex.quote(assignment)}` fills the new ones"
            )


def _added_cells(assignment: str) -> list[str]:
    """The cells that the gradebook gets for graded submissions before the release."""
    from course_pkg.grading.classroom.gradebook.gradebook import CourseGradebook

    with CourseGradebook(Path.cwd()) as book:
        return book.add_new_cells(assignment)


def bundle(
    into: Annotated[Path, typer.Argument(help="A .tar.gz or .zip.")] = Path("llm-course.tar.gz"),
    site: Annotated[bool, typer.Option("--site", help="With the built book, _build/html.")] = False,
) -> None:
    """Write the students' copy of the course.

    It has no solutions, submissions, grades or tests, and nothing that git doesn't track. Run this
    in the course's folder. Exit code 1: it is written, and an assignment that it names is not in
    it. 2: it is not written, and the message says why.
    """
    from course_pkg.grading.classroom import bundle as students

    made = students.bundle(Path.cwd(), into, site)
    typer.echo(f"{into}: {made.count} files")
    if made.left_out:
        typer.echo(
            f"not in it: {', '.join(made.left_out)}; `git add` what students should get", err=True
        )
        if any(name.startswith("exercises/") for name in made.left_out):
            raise typer.Exit(NEEDS_A_LOOK)


def author_check(
    assignment: Annotated[str, typer.Argument(help="The assignment, such as lora-math.")],
    students: Annotated[int, typer.Option(min=1, help="How many students' cases to draw.")] = 25,
) -> None:
    """Print an author's matrix: what each wrong answer loses.

    It shows, for many students, which properties each wrong answer loses.

    Exit code 0 if no part of the assignment is missing, the model answers earn every point, each
    wrong answer loses exactly what questions.toml says and is recognized, and the notebook's
    solutions are the model answers; 1 if not; 2 if no cases can be drawn. Run this in the course's
    folder.
    """
    from course_pkg.grading import author
    from course_pkg.grading.classroom.release import require_course

    require_course(Path.cwd())
    problems = author.missing(assignment, Path())
    if author.can_be_drawn(assignment):
        rows = author.matrix(assignment, students)
        for line in author.lines(rows, students):
            typer.echo(line)
        problems += [f"{row.question.name}: {row.wrong}" for row in rows if row.problem]
        problems += author.problems(assignment, Path())
    for text in problems:
        typer.echo(f"problem: {text}", err=True)
    if problems:
        raise typer.Exit(NEEDS_A_LOOK)
    typer.echo(f"\nno problems; now run: make release && pytest tests/exercises -k {assignment}")
