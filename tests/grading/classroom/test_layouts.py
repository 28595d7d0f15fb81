"""Zips as Moodle and Canvas make them, and the roster that gives their names an id."""

from datetime import UTC, datetime

import pytest

from course_pkg.grading.classroom.submissions.collect import SourceError, collect
from course_pkg.grading.classroom.submissions.names import valid_student
from course_pkg.grading.classroom.submissions.roster import Person, Roster, RosterError, read_roster
from course_pkg.grading.classroom.submissions.sources import Refused
from tests.grading.classroom import test_collect
from tests.grading.classroom.test_collect import NOTEBOOK, A, make_zip
from tests.tables import each_row

WORKSHEET = (
    '\ufeffIdentifier,"Full name","Email address",Status,Grade,"Maximum Grade",'
    '"Grade can be changed","Last modified (submission)","Last modified (grade)",'
    '"Feedback comments"\n'
    '"Participant 101","Ada Lovelace",ada@uni.edu,"Submitted for grading",,100.00,Yes,'
    '"Sunday, 1 March 2026, 3:40 PM",-,\n'
    '"Participant 102","Zoë Müller",zoe@uni.edu,"No submission",,100.00,Yes,-,-,\n'
)
CANVAS = (
    "Student,ID,SIS User ID,SIS Login ID,Section,LoRA math (4711)\n"
    "    Points Possible,,,,,28\n"
    '"Lovelace, Ada",12345,s1,ada,Main,\n'
    '"Müller, Zoë",67890,s2,zoe,Main,\n'
)


def written(path, text):
    path.write_text(text, "utf-8")
    return path


def outcomes(path, **options):
    """For each student: the names of the other files, or why the submission is refused."""
    results = test_collect.outcomes(path, **options)
    return {
        who: one if isinstance(one, str) else sorted(one.beside) for who, one in results.items()
    }


def zip_of(tmp_path, *names):
    return make_zip(tmp_path / "in.zip", [(name, NOTEBOOK) for name in names])


def moodle(tmp_path, *, trailing="_", folders=True, extra=()):
    files = [
        ("Ada Lovelace_101_assignsubmission_file", f"{A}.ipynb"),
        ("Ada Lovelace_101_assignsubmission_file", "notes.txt"),
        ("Zoë Müller_102_assignsubmission_file", "my answer.ipynb"),
    ]
    join = f"{trailing}/" if folders else "_"
    return zip_of(tmp_path, *(f"{folder}{join}{name}" for folder, name in files), *extra)


@pytest.mark.parametrize(
    "form", [{}, {"trailing": ""}, {"folders": False}], ids=["3.1", "4.1", "one folder"]
)
def test_a_moodle_zip_gives_full_names_or_the_rosters_ids(tmp_path, form):
    path = moodle(tmp_path, **form)
    assert outcomes(path) == {"Ada Lovelace": ["notes.txt"], "Zoë Müller": []}
    people = [Person("al", "Ada", "Lovelace"), Person("zm", lms_id="102")]
    roster = Roster(people, complete=True)
    assert outcomes(path, roster=roster) == {"al": ["notes.txt"], "zm": []}
    in_folder = ["Bo Li_103_assignsubmission_file_/my work/a (final).ipynb"]
    assert outcomes(moodle(tmp_path, **form, extra=in_folder))["Bo Li"] == []


def test_a_moodle_team_is_graded_for_each_member_and_not_for_who_has_its_number(tmp_path):
    folders = ("Blue_18_assignsubmission_file", "Green_19_assignsubmission_file")
    path = zip_of(tmp_path, *(f"{name}/{A}.ipynb" for name in folders))
    sheet = "Identifier,Full name,Email address,Group,Grade,Maximum Grade\n" + "".join(
        f"Participant {n},{name},{name[:3]}@u.edu,{group},,28\n"
        for n, name, group in (
            (18, "Bob Stone", "Red"),
            (19, "Cyd Young", "Blue"),
            (20, "Dia Prince", "Blue"),
        )
    )
    roster = read_roster(written(tmp_path / "sheet.csv", sheet))
    by_student = {one.student: one for one in collect(path, A, roster=roster)}
    assert set(by_student) == {"cyd@u.edu", "dia@u.edu", "[Green 19]"}
    assert {"Cyd Young", "dia@u.edu"} <= set(by_student["cyd@u.edu"].called)
    with pytest.raises(Refused, match=r"Green \(number 19\)"):
        by_student["[Green 19]"].read()


def test_a_student_without_other_names_is_called_by_none(tmp_path):
    """Or a second run, in which the gradebook knows the id, would grade everything again."""
    path = zip_of(tmp_path, "ada.ipynb")
    for roster in (None, Roster([Person("ada")], complete=False)):
        (one,) = collect(path, A, roster=roster)
        assert one.called == ()


def test_an_anonymous_worksheet_of_moodle_is_a_roster(tmp_path):
    text = "Identifier,Status,Grade,Maximum Grade\nParticipant 17,Submitted,,28.00\n"
    roster = read_roster(written(tmp_path / "sheet.csv", text))
    path = zip_of(tmp_path, f"Participant_17_assignsubmission_file_/{A}.ipynb")
    assert outcomes(path, roster=roster) == {"Participant 17": []}


def encoded(tmp_path, codec, *names):
    """A zip whose names are in a code page, without the flag for UTF-8."""
    path = zip_of(
        tmp_path, *(f"{'_' * len(name.encode(codec))}{i}.ipynb" for i, name in enumerate(names))
    )
    data = path.read_bytes()
    for i, name in enumerate(names):
        raw = name.encode(codec)
        data = data.replace(b"_" * len(raw) + b"%d.ipynb" % i, raw + b"0.ipynb")
    path.write_bytes(data)
    return path


CODE_PAGES = {"cp437": "Jürgen", "cp850": "Zoë", "cp852": "Łukasz", "gb18030": "李雷"}
CODE_PAGES["cp866"] = "Яна"


@each_row(("codec", "name"), CODE_PAGES.items())
def test_names_of_windows_are_read_as_the_roster_spells_them(tmp_path, codec, name):
    path = encoded(tmp_path, codec, name, "ada")
    results = outcomes(path)
    assert results.pop("ada0") == []
    (why,) = results.values()
    assert "has a name that is not in UTF-8" in why and "--roster" in why
    roster = Roster([Person(f"{name}0"), Person("ada0")], complete=True)
    assert outcomes(path, roster=roster) == {f"{name}0": [], "ada0": []}


@each_row(
    ("names", "used", "told"),
    [
        (
            ["ada.ipynb", "bo.ipynb.txt", "cy.json", "di.zip"],
            {"ada"},
            "bo.ipynb.txt, cy.json, di.zip",
        ),
        (
            [f"ada/{A}/{A}.ipynb", "cy/solution.ipynb", f"gi/{A}-final/{A}.ipynb", "README.txt"],
            {"ada"},
            f"README.txt, cy/solution.ipynb, gi/{A}-final",
        ),
        ([f"ada/{A}/{A}.ipynb", "bo/other/other.ipynb"], {"ada"}, None),
        ([f"Ada L_1_assignsubmission_file_/{A}.ipynb", "x.txt"], {"Ada L"}, "x.txt"),
    ],
)
def test_every_file_that_is_not_used_is_named(tmp_path, names, used, told):
    said = []
    path = zip_of(tmp_path, *names)
    assert {one.student for one in collect(path, A, say=said.append)} == used
    assert said == ([f"not used, since it is no submission to {A}: {told}"] if told else [])


def test_a_folder_or_notebook_that_was_uploaded_again_is_taken_or_named_in_every_layout(tmp_path):
    path = zip_of(tmp_path, f"ada/{A}/{A} (1).ipynb", f"bo/{A} (1)/{A}.ipynb", f"cy/{A}.ipynb")
    results = outcomes(path)
    assert results.pop("ada") == []
    assert all(f"expected {who}/{A}/{A}.ipynb" in why for who, why in results.items())
    assert set(results) == {"bo", "cy"}


def test_other_notebooks_of_a_submission_are_known(tmp_path):
    path = zip_of(tmp_path, f"ada/{A}/{A}.ipynb", f"ada/{A}/old.ipynb", f"ada/{A}/x/y.ipynb")
    (one,) = collect(path, A)
    assert one.read().not_run == ("old.ipynb",)


def test_an_impossible_id_says_what_helps(tmp_path):
    path = zip_of(tmp_path, f"Seán O’Brien (Erasmus)_1_assignsubmission_file_/{A}.ipynb")
    (why,) = outcomes(path).values()
    assert "can't be a student's id: give the class with --roster" in why


def test_moodles_worksheet_is_a_roster_with_times_that_students_do_not_control(tmp_path):
    roster = read_roster(written(tmp_path / "worksheet.csv", WORKSHEET))
    ada, zoe = roster.people
    local = datetime(2026, 3, 1, 15, 40).astimezone(UTC)
    assert ada == Person("ada@uni.edu", "Ada", "Lovelace", "ada@uni.edu", "101", local)
    assert (zoe.full_name, zoe.submitted_at) == ("Zoë Müller", None)
    first, second = collect(moodle(tmp_path), A, roster=roster)
    assert (first.student, first.timestamp, first.trusted) == ("ada@uni.edu", local, True)
    assert second.timestamp is None  # the times in Moodle's zip are those of the download


def test_a_person_whom_the_roster_does_not_have_is_named_and_refused(tmp_path):
    extra = [f"Ada Lovelac_103_assignsubmission_file_/{A}.ipynb", "stray.ipynb"]
    roster = read_roster(written(tmp_path / "worksheet.csv", WORKSHEET))
    results = outcomes(moodle(tmp_path, extra=extra), roster=roster)
    assert results["ada@uni.edu"] == ["notes.txt"] and results["zoe@uni.edu"] == []
    why = "is Ada Lovelac (number 103); similar: ada@uni.edu"
    assert results["[Ada Lovelac 103]"].endswith(why)
    assert "skipped the file stray.ipynb; expected names as Moodle" in results["[stray.ipynb]"]
    assert not valid_student("[Ada Lovelac 103]")


def test_a_number_of_somebody_else_wins_over_the_same_name(tmp_path):
    """Two people have one name: each number gets its own id, and a third one is unknown."""
    names = (f"Li Wei_{n}_assignsubmission_file_/{A}.ipynb" for n in (1, 2, 3))
    path = zip_of(tmp_path, *names)
    people = [Person(f"li{n}", "Li", "Wei", lms_id=str(n)) for n in (1, 2)]
    results = outcomes(path, roster=Roster(people, complete=True))
    assert results["li1"] == results["li2"] == [] and "number 3" in results["[Li Wei 3]"]
    assert set(outcomes(path)) == {"Li Wei 1", "Li Wei 2", "Li Wei 3"}


def test_moodles_online_text_without_a_file_is_refused_with_the_reason(tmp_path):
    extra = [
        "Bo Li_103_assignsubmission_onlinetext_/onlinetext.html",
        "Ada Lovelace_101_assignsubmission_onlinetext_/onlinetext.html",
    ]
    results = outcomes(moodle(tmp_path, extra=extra))
    assert results.pop("Bo Li") == "found an online text; expected a notebook"
    assert results == {"Ada Lovelace": ["notes.txt"], "Zoë Müller": []}


def test_the_name_of_a_file_can_not_name_another_person_of_a_moodle_zip(tmp_path):
    extra = [f"Mallory_103_assignsubmission_file_x_101_assignsubmission_file_{A}.ipynb"]
    path = moodle(tmp_path, folders=False, extra=extra)
    people = [Person("ada", lms_id="101"), Person("mallory", lms_id="103")]
    by_student = {
        one.student: one for one in collect(path, A, roster=Roster(people, complete=False))
    }
    assert sorted(by_student["ada"].read().beside) == ["notes.txt"]
    assert by_student["mallory"].path == extra[0]


def test_names_that_differ_only_in_case_get_their_numbers(tmp_path):
    names = (f"{who}_assignsubmission_file_/{A}.ipynb" for who in ("Li Wei_1", "li wei_2"))
    path = zip_of(tmp_path, *names)
    assert outcomes(path) == {"Li Wei 1": [], "li wei 2": []}


def canvas(tmp_path, *extra):
    return zip_of(
        tmp_path,
        f"lovelaceada_LATE_12345_901_{A}-1.ipynb",
        "lovelaceada_LATE_12345_902_data_2_1.csv",
        f"müllerzoë_67890_903_{A}.ipynb",
        *extra,
    )


def test_a_canvas_zip_gives_late_flags_all_files_and_the_rosters_ids(tmp_path):
    path = canvas(tmp_path)
    assert outcomes(path) == {"lovelaceada": ["data_2_1.csv"], "müllerzoë": []}
    for roster in (
        read_roster(written(tmp_path / "gradebook.csv", CANVAS)),
        Roster([Person("ada", "Ada", "Lovelace"), Person("zoe", "Zoë", "Müller")], complete=True),
    ):
        ada, zoe = collect(path, A, roster=roster)
        assert (ada.student, ada.late, zoe.student, zoe.late) == ("ada", True, "zoe", False)
        assert ada.timestamp is zoe.timestamp is None


def test_the_name_of_a_file_does_not_make_a_canvas_zip_one_of_moodle(tmp_path):
    extra = f"mallory_777_905_x_1_assignsubmission_file_{A}.ipynb"
    assert set(outcomes(canvas(tmp_path, extra))) == {"lovelaceada", "mallory", "müllerzoë"}


def test_canvas_resubmissions_text_entries_and_anonymous_names(tmp_path):
    path = canvas(
        tmp_path,
        f"müllerzoë_67890_904_{A}-2.ipynb",
        "bobo_777_text.html",
        f"LATE_anon_x1y2z_905_{A}.ipynb",
        "notes.ipynb",
    )
    by_student = {one.student: one for one in collect(path, A)}
    assert by_student["anon_x1y2z"].late and by_student["anon_x1y2z"].read().notebook == NOTEBOOK
    with pytest.raises(Refused, match=r"found text\.html; expected lora-math\.ipynb"):
        by_student["bobo"].read()
    with pytest.raises(Refused, match=r"skipped the file notes\.ipynb"):
        by_student["[notes.ipynb]"].read()
    assert sorted(by_student["müllerzoë"].read().beside) == [f"{A}-2.ipynb"]


def test_several_notebooks_without_the_assignments_name_are_refused(tmp_path):
    path = canvas(tmp_path, "bobo_777_1_a.ipynb", "bobo_777_2_b.ipynb")
    assert "found a.ipynb, b.ipynb; expected lora-math.ipynb" in outcomes(path)["bobo"]


def test_the_layout_can_be_given(tmp_path):
    path = canvas(tmp_path)
    assert f"lovelaceada_LATE_12345_901_{A}-1" in outcomes(path, layout="flat")
    with pytest.raises(SourceError, match="in the layout moodle: found"):
        collect(path, A, layout="moodle")


def test_names_of_a_flat_folder_that_look_like_canvas_need_a_majority(tmp_path):
    path = zip_of(tmp_path, "ada.ipynb", "bo_1_2_x.ipynb", "zoe.ipynb")
    assert set(outcomes(path)) == {"ada", "bo_1_2_x", "zoe"}


def test_two_names_of_one_student_are_both_named(tmp_path):
    roster = Roster([Person("ada", "Ada", "Lovelace")], complete=True)
    path = zip_of(tmp_path, "ada.ipynb", "Ada Lovelace.ipynb")
    assert outcomes(path, roster=roster) == {
        "ada": "2 submissions have the id ada: Ada Lovelace, ada"
    }


def test_a_roster_maps_ids_of_folders_too_and_names_unknown_ones(tmp_path):
    path = zip_of(tmp_path, "Ada.ipynb", "adda.ipynb")
    roster = Roster([Person("ada"), Person("bo")], complete=True)
    results = outcomes(path, roster=roster)
    assert results["ada"] == [] and results["adda"].endswith("is adda; similar: ada")


@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("deep", ["x/" * 400 + "x", "x/" * 20_000 + "x", "zz.ipynb/" * 50 + "x"])
def test_a_very_deep_path_stops_nobody(tmp_path, flat, deep):
    names = [f"{s}.ipynb" if flat else f"{s}/{A}/{A}.ipynb" for s in ("amy", "zoe")]
    inside = [] if flat else [f"bo/{A}/{A}.ipynb", f"bo/{A}/{deep}"]
    results = outcomes(zip_of(tmp_path, *names, deep, *inside))
    assert results.pop("amy") == results.pop("zoe") == []
    assert flat or ("bo" in results and isinstance(results["bo"], str))


# The roster


def test_your_own_csv_may_have_semicolons_and_times(tmp_path):
    text = "id;first_name;last_name;email;moodle_id;submitted_at\nada;Ada;L;a@b;7;2026-03-01 12:00"
    when = datetime(2026, 3, 1, 12, tzinfo=UTC)
    for zone in ("Z", " UTC", "UTC", "+00:00"):
        (ada,) = read_roster(written(tmp_path / "roster.csv", text + zone)).people
        assert ada == Person("ada", "Ada", "L", "a@b", "7", when), zone


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("name,mail\nAda,x\n", "has the columns name, mail; expected id"),
        ("", "has the columns none"),
        ("id\n../ada\n", r"has the id '\.\./ada'"),
    ],
)
def test_a_roster_without_anybody_is_refused(tmp_path, text, says):
    with pytest.raises(RosterError, match=says):
        read_roster(written(tmp_path / "roster.csv", text))
    with pytest.raises(RosterError, match=r"no\.csv can't be read"):
        read_roster(tmp_path / "no.csv")
