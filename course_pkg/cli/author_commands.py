"""The commands of `course` for authors: release, author-check and bundle.

Chapter: appendix/for-instructors.
"""

from pathlib import Path
from typing import Annotated

import typer

from course_pkg.cli.exits import NEEDS_A_LOOK


def release(
    assignments: Annotated[list[str], typer.Argument(help="The assignments, such as lora-math.")],
) -> None:
    """Generate the students' notebooks from solutions/.

    They go to exercises/. Run this in the course's folder."""
    from course_pkg.classroom.release import release_assignment

    for assignment in assignments:
        changed = release_assignment(Path.cwd(), assignment)
        typer.echo(f"exercises/{assignment}: {'released' if changed else 'unchanged'}")


def bundle(
    into: Annotated[Path, typer.Argument(help="A .tar.gz or .zip.")] = Path("llm-course.tar.gz"),
) -> None:
    """Write the students' copy of the course.

    It has no solutions, submissions, grades or tests. Run this in the course's folder."""
    from course_pkg.classroom import bundle as students

    typer.echo(f"{into}: {students.bundle(Path.cwd(), into)} files")


def author_check(
    assignment: Annotated[str, typer.Argument(help="The assignment, such as lora-math.")],
    students: Annotated[int, typer.Option(min=1, help="How many students' cases to draw.")] = 25,
) -> None:
    """Print an author's matrix: what each wrong answer loses.

    It shows, for many students, which properties each wrong answer loses.

    Exit code 0 if the model answers earn every point, each wrong answer loses exactly what
    questions.toml says and is recognized, and the notebook's solutions are the model answers; 1
    if not; 2 if no cases can be drawn. Run this in the course's folder.
    """
    from course_pkg.classroom.release import require_course
    from course_pkg.grading import author

    require_course(Path.cwd())
    rows = author.matrix(assignment, students)
    for line in author.lines(rows, students):
        typer.echo(line)
    found = [f"{row.question.name}: {row.wrong}" for row in rows if row.problem]
    found += author.problems(assignment, Path("solutions"))
    for text in found:
        typer.echo(f"problem: {text}", err=True)
    if found:
        raise typer.Exit(NEEDS_A_LOOK)
    typer.echo(f"\nno problems; now run: make release && pytest tests/exercises -k {assignment}")
