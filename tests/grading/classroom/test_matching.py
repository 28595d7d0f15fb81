"""Whose a row of a roster, of an LMS's table or of a zip is: no score goes to somebody else."""

import csv
import io
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from course_pkg.grading.classroom.feedback.lms_export import canvas, feedback_zip, moodle, owners
from course_pkg.grading.classroom.feedback.sanitize import clean_html
from course_pkg.grading.classroom.submissions.layouts import canvas_file, possible_owners
from course_pkg.grading.classroom.submissions.names import inert
from course_pkg.grading.classroom.submissions.roster import (
    Person,
    Roster,
    RosterError,
    agreement,
    read_roster,
)
from tests.grading.classroom.test_class import rows
from tests.grading.classroom.test_layouts import A, outcomes, written, zip_of

ADA = Person("al1", "Ada", "Lovelace", "ada@uni.edu", "101")


DESCRIBED = [  # as an LMS may describe somebody, and whether it can be Ada
    (Person("", email="ADA@uni.edu", lms_id="7"), True),  # Moodle's numbers are an assignment's
    (Person("", "Ada", "Lovelace", "ada@home.org"), False),
    (Person("", "Ada", "Lovelace", "ada@home.org", "101"), False),
    (Person("al1", email="ada@home.org"), False),
    (Person("", "Grace", "Hopper", lms_id="101"), False),  # the number of a group, say
    (Person("", lms_id="101"), True),
    (Person("al1", "Grace", "Hopper", lms_id="101"), True),
    (Person("", "Ada", "Lovelace", lms_id="102"), False),
    (Person("al1", lms_id="102"), False),
    (Person("AL1"), True),
    (Person("ada@uni.edu"), True),  # an address as id
    (Person("x", "Ada", "Lovelace"), True),  # ids of two systems
    (Person("", "", "ada-LOVELACE"), True),  # Moodle and Canvas leave out some signs
    (Person("", "lovelaceada"), True),
    (Person("", "al1"), False),  # a name is no id
    (Person("", "Ada", "Love"), False),
    (Person(""), False),
]


def test_the_strongest_thing_that_both_have_decides():
    assert [row for row in DESCRIBED if (agreement(row[0], ADA) > 0) is not row[1]] == []


def test_ids_are_equal_without_case_and_kind_of_accents():
    pairs = [("zoe\u0308", "zo\u00eb"), ("Zoë", "zoë"), ("ada ", "ada"), ("A@U.edu", "a@u.edu")]
    assert [ids for ids in pairs if agreement(*map(Person, ids)) != 2] == []
    assert agreement(Person("straße"), Person("strasse")) == 0


def test_two_ids_of_one_person_are_found():
    twice = Person("ada@uni.edu", "Ada", "Lovelace", "ADA@uni.edu")
    roster = Roster([ADA, twice, Person("bo", "Bo", "Li")], complete=False)
    assert [(one.id, other.id) for one, other in roster.doubles()] == [("ada@uni.edu", "al1")]


def moodle_sheet(tmp_path, *people):
    lines = [f"Participant {n},{name},{email},,100\n" for n, name, email in people]
    head = "Identifier,Full name,Email address,Grade,Maximum Grade\n"
    return written(tmp_path / "worksheet.csv", head + "".join(lines))


def grades(text, column):
    return [row[column] for row in csv.DictReader(io.StringIO(text))]


def test_a_namesake_with_another_address_gets_nothing_in_moodle(tmp_path):
    person = Person("al1", "Ada", "Lovelace", "ada@uni.edu")
    people = [(1, "Ada Lovelace", "ada2@uni.edu"), (2, "Ada Lovelace", "ada@uni.edu")]
    made = moodle(rows(person), moodle_sheet(tmp_path, *people))
    assert grades(made.text, "Grade") == ["", "75"]
    assert (made.left_out, made.doubts) == ((), ())


def test_two_rows_for_one_student_are_both_left_and_named(tmp_path):
    people = [(1, "Ada Lovelace", ""), (2, "Ada Lovelace", ""), (3, "al1", "")]
    made = moodle(rows(Person("al1", "Ada", "Lovelace")), moodle_sheet(tmp_path, *people))
    assert grades(made.text, "Grade") == ["", "", ""]
    assert made.left_out == ("al1",)
    assert made.doubts[0].startswith("2 rows fit the student al1: Ada Lovelace 1; Ada Lovelace 2")


def test_a_full_name_is_not_looked_up_among_ids(tmp_path):
    made = moodle(rows(Person("x_y", "Bo", "Li")), moodle_sheet(tmp_path, (1, "X Y", "")))
    assert grades(made.text, "Grade") == [""] and made.left_out == ("x_y",)


def test_a_row_that_fits_two_students_is_left(tmp_path):
    people = rows(Person("a", "Li", "Wei"), Person("b", "Li", "Wei"))
    made = moodle(people, moodle_sheet(tmp_path, (1, "Li Wei", "")))
    assert grades(made.text, "Grade") == [""] and "fits several students (a, b)" in made.doubts[0]


def test_in_a_table_with_the_classs_ids_a_name_proves_nothing():
    table = [{"Student": "Wei, Li", "ID": "", "SIS Login ID": name} for name in ("li2", "li1")]
    owned, doubts = owners(list(table[0]), table, rows(Person("li1", "Li", "Wei")))
    assert [row and row.student for row in owned] == [None, "li1"] and doubts == []


CANVAS_HEAD = "Student,ID,SIS User ID,SIS Login ID,Section,a (1)\n"


def test_another_address_as_login_in_canvas_is_somebody_else(tmp_path):
    """Mallory has changed her name in Canvas."""
    ada = Person("al1", "Ada", "Lovelace", "ada@uni.edu")
    row = '"Lovelace, Ada",9,,mallory@uni.edu,S,\n'
    made = canvas(rows(ada), "a", written(tmp_path / "c.csv", CANVAS_HEAD + row))
    assert grades(made.text, "a (1)") == [""] and made.left_out == ("al1",)
    assert made.doubts[0].startswith("a row has the name of al1, but another e-mail address")
    row = row.replace("mallory@uni.edu", "x17")  # an id of another system says nothing
    made = canvas(rows(ada), "a", written(tmp_path / "c.csv", CANVAS_HEAD + row))
    assert grades(made.text, "a (1)") == ["21"]


def test_two_students_with_one_number_get_nothing_by_it(tmp_path):
    both = [Person("a", "Ada", "L", lms_id="101"), Person("b", "Bo", "L", lms_id="101")]
    for made, column in (
        (canvas(rows(*both), "a", None), "a"),
        (moodle(rows(*both), None), "Grade"),
    ):
        assert grades(made.text, column)[-2:] == ["", ""] and made.left_out == ("a", "b")
        assert [doubt[:22] for doubt in made.doubts] == ["2 rows have one number"] * 2
    for person in both:
        page = tmp_path / "feedback" / person.id / "a" / "a.html"
        page.parent.mkdir(parents=True)
        page.write_text(f"for {person.id} alone")
    assert feedback_zip(tmp_path, "a", rows(*both), tmp_path / "x.zip") == 0
    assert feedback_zip(tmp_path, "a", rows(both[0]), tmp_path / "x.zip") == 1


# -- names of files from Canvas


MALLORY = Person("mallory", "", "x_77", lms_id="55")
CLASS = [Person("ada", "Ada", "Lovelace", lms_id="77"), MALLORY]


@pytest.mark.parametrize("late", ["", "LATE_"])
def test_a_canvas_name_that_ends_in_a_number_takes_nobodys_place(tmp_path, late):
    path = zip_of(tmp_path, f"lovelaceada_77_900_{A}.ipynb", f"x_77_{late}55_901_{A}.ipynb")
    assert outcomes(path, roster=Roster(CLASS, complete=True)) == {"ada": [], "mallory": []}
    results = outcomes(path, roster=Roster(CLASS[:1], complete=False))
    assert results["ada"] == [] and len(results) == 2


def test_a_canvas_file_that_fits_two_students_is_refused_alone(tmp_path):
    names = (f"lovelaceada_77_900_{A}.ipynb", f"lovelaceada_77_55_901_{A}.ipynb")
    path = zip_of(tmp_path, *names)
    people = [CLASS[0], Person("mallory", "", "lovelaceada_77", lms_id="55")]
    for roster in (None, Roster(people, complete=True)):
        results = outcomes(path, roster=roster)
        assert results.pop("ada" if roster else "lovelaceada") == []
        assert "it can be of any of the students 77, 55" in results.pop(f"[{names[1]}]")
        assert not results


def test_a_number_in_the_name_of_a_strangers_file_decides_nothing(tmp_path):
    """The roster has no names, so that only the number could tell, which the stranger wrote."""
    roster = Roster([Person("ada", lms_id="77")], complete=True)
    for start in ("x_55_901", "_55_901", "x_LATE_55_901", "anon_abcde_901"):
        name = f"{start}_77_9_{A}.ipynb"
        results = outcomes(zip_of(tmp_path, name), roster=roster)
        assert list(results) == [f"[{name}]"] and "it can be of any of" in results[f"[{name}]"]


WORDS = st.lists(st.sampled_from(["ada", "x", "77", "5", "late", "123"]), min_size=1, max_size=4)


@example(["ada", "x", "77"], ["ada"], False, 1, 1, True)
@given(WORDS, WORDS, st.booleans(), st.integers(1, 99), st.integers(1, 999), st.booleans())
def test_the_true_owner_of_a_canvas_file_is_chosen_or_nobody(
    name, file, late, lms_id, upload, named
):
    short = "_".join(name)
    mark = "_LATE" if late else ""
    title = f"{short}{mark}_{lms_id}_{upload}_{'_'.join(file)}.ipynb"
    owner = Person("owner", "", short, lms_id=str(lms_id))
    # Names that WORDS can't spell: a file with a classmate's name and number is the classmate's.
    names = ("Grace", "Hopper") if named else ("", "")
    others = [Person(f"s{n}", *names, lms_id=str(n)) for n in (5, 77, 123) if n != lms_id]
    assert (short, str(lms_id)) in [(one.name, one.lms_id) for one in possible_owners(title)]
    for people in (None, [owner, *others], others):
        roster = None if people is None else Roster(people, complete=True)
        one = canvas_file((), title, roster)
        assert one.skipped or (one.name, one.lms_id) == (short, str(lms_id))


# -- rosters


def test_an_impossible_id_refuses_that_person_alone(tmp_path):
    path = zip_of(tmp_path, f"Bo Li_1_assignsubmission_file_/{A}.ipynb")
    for bad in ("x#y@uni.edu", "_x@uni.edu", "=cmd", "", "a\0b"):
        text = f"id,first_name,last_name\nada,Ada,L\n{bad},Bo,Li\n"
        roster = read_roster(written(tmp_path / "roster.csv", text))
        assert [person.id for person in roster.people] == ["ada"], bad
        ((person, why),) = roster.refused
        assert person.full_name == "Bo Li" and "Bo Li has the id" in why, bad
        assert list(outcomes(path, roster=roster).values()) == [why], bad


def test_of_two_people_with_one_id_both_are_refused(tmp_path):
    roster = read_roster(written(tmp_path / "roster.csv", "id\nada\nAda\nbo\n"))
    assert [person.id for person in roster.people] == ["bo"]
    assert [person.id for person, _ in roster.refused] == ["ada", "Ada"]
    assert "2 students have the id ada" in roster.refused[0][1]


def test_a_classmates_address_in_moodles_worksheet_takes_nobodys_marks(tmp_path):
    """Mallory has written Ada's address as her own, in capitals."""
    people = [(1, "Ada Lovelace", "ada@uni.edu"), (2, "Mal Lory", "ADA@UNI.EDU")]
    roster = read_roster(moodle_sheet(tmp_path, *people, (3, "Bo Li", "Bo@Uni.edu")))
    assert [p.id for p in roster.people] == ["Participant 1", "Participant 2", "bo@uni.edu"]
    names = (f"{who}_assignsubmission_file_/{A}.ipynb" for who in ("Ada Lovelace_1", "Mal Lory_2"))
    results = outcomes(zip_of(tmp_path, *names), roster=roster)
    assert results == {"Participant 1": [], "Participant 2": []}


def test_a_roster_with_an_open_quotation_mark_is_refused(tmp_path):
    with pytest.raises(RosterError, match=r"line 3: .* is a quotation mark missing"):
        read_roster(written(tmp_path / "r.csv", 'id,first_name\nada,"Ada\nbo,Bo\n'))


SPLIT = (
    "LastName,FirstName,ID,SIS User ID,SIS Login ID,Section,a (1)\n    Points Possible,,,,,,100\n"
    "Lovelace,Ada,11,s1,al1,S,\nYoung,Cy,13,s3,cy,S,EX\n"
)


def test_canvas_with_two_columns_for_names_scales_and_keeps_who_is_excused(tmp_path):
    path = written(tmp_path / "c.csv", SPLIT)
    cy = Person("cy", "Cy", "Young", lms_id="13")
    made = canvas(rows(replace(ADA, lms_id="11"), cy, automatic=23), "a", path)
    assert grades(made.text, "a (1)") == ["100", "85.71", "EX"]
    assert (made.written, made.left_out, made.doubts) == (1, (), ())
    assert any("excused (EX): cy" in note for note in made.notes)
    assert [person.id for person in read_roster(path).people] == ["al1", "cy"]


@pytest.mark.parametrize("bad", ["9999-12-31T23:59:59-12:00", "9999-12-31T23:59:59Z", "gestern"])
def test_a_time_that_cannot_be_read_refuses_that_person_alone(tmp_path, bad):
    own = f"id,submitted_at\nada,2026-01-01\nbo,{bad}\n"
    sheet = (
        f"Identifier,Full name,Email address,Last modified (submission)\n"
        f"Participant 1,Ada L,ada,-\nParticipant 2,Bo Li,bo,{bad}\n"
    )
    for text, who in ((own, "bo"), (sheet, "Bo Li")):
        roster = read_roster(written(tmp_path / "roster.csv", text))
        assert [person.id for person in roster.people] == ["ada"]
        ((person, why),) = roster.refused
        assert person.id == "bo" and f"roster.csv: {who}: the time '{bad}' is not clear" in why


HEADERS = ["id,email,submitted_at", "Student,ID,SIS Login ID,Section", "id;first_name", ""]
HEADERS += ["Identifier,Full name,Email address,Last modified (submission)"]
HEADERS += ["ID,LastName,FirstName"]
CELLS = ["9999-12-31T23:59:59-12:00", "0001-01-01T00:00:00+14:00", "0001-01-01", '"', "a\0b"]
CELLS += ["\ufeff", "x" * 140_000, "Participant ٣", "=1+1", "ada"]
CELL = st.text(max_size=8) | st.sampled_from(CELLS)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    st.sampled_from(HEADERS),
    st.lists(st.lists(CELL, max_size=6), max_size=5),
    st.sampled_from(["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-32", "latin-1"]),
    st.binary(max_size=3),
)
def test_any_bytes_are_a_roster_or_a_roster_error(tmp_path, header, table, encoding, tail):
    text = "\n".join([header, *(",".join(row) for row in table)])
    path = Path(tmp_path / "roster.csv")
    path.write_bytes(text.encode(encoding, "replace") + tail)
    try:
        read_roster(path)
    except RosterError as error:
        assert str(error)


# -- cells that no spreadsheet computes


def test_a_sign_that_begins_a_formula_is_quoted():
    before = ("", " ", "\ufeff", "\u200b", "\u3164", "\xa0", "x;", "x\t", "x\r")
    begins = [f"{text}{sign}1+1" for sign in "=+-@＝＋－＠﹦﹢﹣﹫−⁼" for text in before]
    assert [text for text in begins if "'" not in inert(text)] == []
    inside = [f"a{sign}1+1" for sign in "=+-@＝＋－＠﹦﹢﹣﹫−⁼"]
    assert [text for text in inside if inert(text) != text] == []


def test_every_cell_of_an_export_is_inert_and_canvas_reads_its_numbers(tmp_path):
    text = "Student,ID,SIS User ID,SIS Login ID,S,a (1)\n＝1+1,=2+2,+x+y,ada,@s,\nB,12,,bo,,\n"
    made = canvas(rows(Person("ada"), Person("bo")), "a", written(tmp_path / "c.csv", text))
    first, second = csv.DictReader(io.StringIO(made.text))
    assert all(cell == inert(cell) for cell in first.values())
    assert first["ID"] == "'=2+2" and second["ID"] == "12"
    made = canvas(rows(Person("ada", lms_id="=2+2")), "a", None)
    assert grades(made.text, "ID") == ["", ""]


STYLES = [
    ("background-color:expression(alert(1))", ""),
    ("color:red;background-color:url(//x)", "color:red"),
    ("COLOR : #F00 ; position:fixed", "color:#f00"),
    ("color:rgb(1, 2, 3);font-weight:bold", "color:rgb(1, 2, 3);font-weight:bold"),
    (r"color:\65xpression(1)", ""),
    ("color:red/**/;white-space:pre", "white-space:pre"),
    ("text-align:right !important", ""),
]


def test_only_known_values_of_known_styles_are_kept():
    for style, kept in STYLES:
        inner = f'<b style="{kept}">x</b>' if kept else "<b>x</b>"
        assert inner in clean_html(f'<b style="{style}">x</b>'), style


def test_a_cell_spans_at_most_999():
    html = clean_html("<table><tr><td colspan='999999' rowspan='2'>x</td></tr></table>")
    assert '<td rowspan="2">' in html
