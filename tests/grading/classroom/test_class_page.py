"""The class's page in a browser: paged, sorted, searched, printed, and read without JavaScript."""

import itertools
from contextlib import contextmanager
from dataclasses import replace
from urllib.parse import parse_qs, urlsplit

import pytest
from bs4 import BeautifulSoup

from course_pkg.grading.classroom.execution.runner_output import State
from course_pkg.grading.classroom.feedback import class_report
from course_pkg.grading.classroom.feedback.class_report import PAGE, TABLE_COLUMNS, flags, groups
from course_pkg.grading.classroom.gradebook.class_rows import Row
from course_pkg.grading.classroom.submissions.roster import Person
from tests.chromium import Tab, low_contrast
from tests.grading.classroom.crowd import crowd
from tests.grading.classroom.recorded import ASSIGNMENT, HOSTILE, record

STUDENTS = 230
NASTY = (
    HOSTILE,
    "</script><script>document.title = 'stolen'</script>",
    "</noscript><script>document.title = 'stolen'</script>",
    "</title></style><base href=//evil.example><style>*{display:none}</style>",
    "\"' onfocus=alert(1) autofocus data-in='0'",
    "\u202eada\u2066\u200f",
    "{{ 7 * 7 }} ${7 * 7} &lt;b&gt; &#60;b&#62;",
)

pytestmark = [pytest.mark.browser, pytest.mark.slow]


@pytest.fixture(scope="module")
def rows():
    return crowd(STUDENTS)


@pytest.fixture(scope="module")
def file(rows, tmp_path_factory):
    return written(tmp_path_factory.mktemp("page"), rows)


@contextmanager
def new_tab(browser, *size):
    """A tab without problems."""
    tab = Tab(browser, *size)
    tab.page.set_default_timeout(50_000)
    yield tab
    tab.context.close()
    assert tab.problems == []


@pytest.fixture
def tab(browser):
    with new_tab(browser) as tab:
        yield tab


def written(folder, rows):
    class_report.write(folder, ASSIGNMENT, rows)
    return folder / class_report.folder(ASSIGNMENT) / "index.html"


def shown(page, column=0):
    """The texts of a column, in the rows that the table shows; the first word of students."""
    texts = page.eval_on_selector_all(
        "#students tbody tr", "(rows, at) => rows.map((row) => row.cells[at].innerText)", column
    )
    return [text.split()[0] for text in texts] if column == 0 else texts


def status(page):
    return page.inner_text("[role=status]")


def search(page, text):
    page.fill("input[type=search]", text)
    page.wait_for_url(lambda url: searched(url) == text.strip())


def searched(url):
    """What the address says that is searched for."""
    return parse_qs(urlsplit(url).fragment).get("q", [""])[0]


def sort(page, name):
    page.click(f"#students thead button:text-is('{name}')")


def turn(page, name):
    """Press a button below the table, even one that says that it does nothing."""
    page.click(f".pager button:text-is('{name}')", force=True)


def test_the_pages_of_the_table_hold_every_student_once(tab, file, rows):
    page = tab.open(file)
    seen = []
    assert status(page) == f"1–50 of {STUDENTS}"
    while True:
        seen += shown(page)
        assert len(shown(page)) <= PAGE
        if page.get_attribute(".pager button:text-is('Next')", "aria-disabled") == "true":
            break
        turn(page, "Next")
    assert seen == [row.student for row in rows] and status(page) == "201–230 of 230"
    turn(page, "Next")  # nothing more
    assert status(page) == "201–230 of 230"
    turn(page, "Previous")
    assert status(page) == "151–200 of 230"
    turn(page, "First")
    turn(page, "Previous")
    assert status(page) == "1–50 of 230"
    turn(page, "Last")
    assert shown(page) == [row.student for row in rows[200:]]


NUMBERS = {
    "score": lambda row: row.score,
    "automatic": lambda row: row.points.automatic,
    "by hand": lambda row: row.points.by_hand,
    "late penalty": lambda row: row.points.late_penalty,
    "to mark": lambda row: row.points.to_mark,
}


def all_shown(page, column=0):
    """The texts of a column on all pages of the table, as they are printed."""
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    texts = shown(page, column)
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    return texts


def test_numbers_are_sorted_as_numbers_and_those_without_come_last(tab, file, rows):
    page = tab.open(file)
    has = [row for row in rows if row.score is not None]
    none = [row.student for row in rows if row.score is None]
    for name, reverse in itertools.product(NUMBERS, (False, True)):
        sort(page, name)
        expected = sorted(has, key=NUMBERS[name], reverse=reverse)  # both keep the order of equals
        assert all_shown(page) == [row.student for row in expected] + none
        direction = "descending" if reverse else "ascending"
        assert page.get_attribute("th[aria-sort]", "aria-sort") == direction
        assert f"by {name}" in status(page) and ("descending" in status(page)) == reverse
    assert page.locator("th[aria-sort]").count() == 1


def test_texts_are_sorted_and_empty_ones_come_last(tab, file, rows):
    page = tab.open(file)
    sort(page, "state")
    assert all_shown(page, 2) == sorted(row.state for row in rows)
    sort(page, "why")
    why = all_shown(page, 7)
    reasons = [text for text in why if text]
    assert reasons and why == reasons + [""] * (len(why) - len(reasons))
    sort(page, "student")
    sort(page, "student")
    assert all_shown(page) == [row.student for row in reversed(rows)]


SEARCHES = {
    "S00042": lambda row: row.student == "s00042",
    "zoe MULLER": lambda row: row.person.full_name.startswith("Zoë Müller"),
    "cell-timed-out": lambda row: row.state == "cell-timed-out",
    "to mark": lambda row: "to mark" in flags(row),
    "waiting": lambda row: row.state == State.WAITING,
    "is a link": lambda row: row.state == State.REFUSED,
    "26.5": lambda row: False,  # numbers are for sorting
    "<b>.*": lambda row: False,
}


def test_the_search_finds_names_states_reasons_and_flags(tab, file, rows):
    page = tab.open(file)
    turn(page, "Last")
    for text, fits in SEARCHES.items():
        search(page, text)
        expected = [row.student for row in rows if fits(row)]
        assert shown(page) == expected[:PAGE]
        counted = f"1–{min(PAGE, len(expected))} of {len(expected)}" if expected else "nobody"
        assert status(page) == f"{counted} (of {STUDENTS})"
    search(page, "")
    assert status(page) == f"1–50 of {STUDENTS}"


def test_the_table_shows_each_group_alone_and_combines_it_with_the_search(tab, file, rows):
    page = tab.open(file)
    counts = dict(groups(rows))
    assert {"graded", "refused", "no-submission", "late", "to mark", "remarks"} <= counts.keys()
    for at, (name, count) in enumerate(counts.items()):
        page.select_option("select", str(at))
        members = [r.student for r in rows if name in (r.state, *flags(r))]
        assert count == len(members) and shown(page) == members[:PAGE]
    page.select_option("select", label=f"late ({counts['late']})")
    search(page, "mei")
    late = [r.student for r in rows if "late" in flags(r) and r.person.first_name == "Mei"]
    assert late and shown(page) == late


def test_going_back_from_a_student_shows_the_same_rows_again(tab, file):
    page = tab.open(file)
    sort(page, "score")
    sort(page, "score")
    search(page, "graded")
    turn(page, "Next")
    before = (shown(page), status(page))
    page.click("#students tbody a")
    page.wait_for_url("**/s0*.html")
    page.go_back()
    assert (shown(page), status(page)) == before
    assert page.input_value("input[type=search]") == "graded"


@pytest.mark.parametrize(
    "query", ["#page=999&by=99&in=zz", "#page=-1&by=-7&down=x", "#by=x&page=e"]
)
def test_an_impossible_address_shows_the_table_all_the_same(tab, file, query):
    page = tab.open(file, query)
    assert len(shown(page)) in (PAGE, STUDENTS % PAGE) and str(STUDENTS) in status(page)


def test_the_keyboard_reaches_everything_and_names_are_spoken(tab, file):
    page = tab.open(file)
    page.focus("input[type=search]")
    reached = []
    for _ in range(3 + len(TABLE_COLUMNS) + PAGE + 5):
        page.keyboard.press("Tab")
        reached.append(page.evaluate("document.activeElement.innerText?.trim().split('\\n')[0]"))
    assert list(TABLE_COLUMNS) == [r for r in reached if r in TABLE_COLUMNS]
    buttons = ["First", "Previous", "Next", "Last"]
    assert [text for text in reached if text in buttons] == buttons
    page.focus("#students thead button:text-is('score')")
    page.keyboard.press("Enter")
    page.keyboard.press("Space")
    assert page.get_attribute("th[aria-sort]", "aria-sort") == "descending"
    assert page.evaluate("document.activeElement.innerText") == "score"
    page.focus(".pager button:text-is('Next')")
    for _ in range(STUDENTS // PAGE + 2):
        page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.innerText") == "Next"  # also on the last page
    tree = page.locator("#students").aria_snapshot()
    for part in (
        'search "Students"',
        'searchbox "Search"',
        'combobox "Show"',
        'table "Students"',
        'columnheader "score"',
        'button "score"',
        'navigation "Pages of the table"',
        'rowheader "s00',
        "- status",
    ):
        assert part in tree
    assert page.evaluate("[...document.querySelectorAll('[id]')].length") == 1


def test_without_javascript_everybody_is_on_the_page(browser, file, rows):
    context = browser.new_context(java_script_enabled=False, offline=True)
    page = context.new_page()
    page.goto(file.as_uri())
    assert not page.locator(".tools").is_visible() and not page.locator(".pager").is_visible()
    assert page.locator("noscript table").is_visible()
    assert "need JavaScript" in page.inner_text("noscript .box")
    context.close()
    headers = BeautifulSoup(file.read_text(), "html.parser").select("th[scope=row]")
    texts = [next(header.stripped_strings) for header in headers]
    assert [text for text in texts if text.startswith("s0")] == [row.student for row in rows]


def hostile_rows():
    rows = crowd(PAGE)  # others before them, so that they are in <noscript> too
    for at, text in enumerate(NASTY):
        rec = record(f"a{at}", state=State.KERNEL_DIED, reason=text, remarks=(text,))
        for student in (f"a{at}", text):
            hostile = replace(rec, student=student)
            rows.append(Row(Person(student, text, text), hostile, rows[1].points))
    return rows


def test_hostile_names_and_reasons_are_text(tab, tmp_path):
    file = written(tmp_path, hostile_rows())
    page = tab.open(file)
    turn(page, "Next")
    assert len(shown(page)) == 2 * len(NASTY) and page.title() == f"{ASSIGNMENT}: results"
    for selector in ("img", "base", "script + script", "#students b", "[onfocus]", "[autofocus]"):
        assert page.locator(selector).count() == 0
    texts = page.inner_text("#students")
    assert "</noscript><script>" in texts and "{{ 7 * 7 }} ${7 * 7} &lt;b&gt;" in texts
    assert not set("\u202e\u2066\u200f") & set(texts)
    for text in NASTY[:5]:
        search(page, text)
        assert len(shown(page)) >= 1 and "nobody" not in status(page)
    page.goto(f"{file.as_uri()}#q=%3Cimg+src%3Dx+onerror%3Dalert(1)%3E&in=%22%3E%3Cscript%3E")
    page.reload()
    assert page.locator("img").count() == 0


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_the_page_fits_the_window_with_enough_contrast(browser, tmp_path, width, scheme):
    rows = [*crowd(PAGE + 5), Row(Person("x" * 64, "y" * 80, "z" * 80), None, None)]
    with new_tab(browser, width, scheme) as tab:
        page = tab.open(written(tmp_path, rows))
        for _ in range(2):
            sort(page, "score")
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            assert low_contrast(page) == []
            turn(page, "Last")


def test_the_pages_of_the_table_turn_without_losing_the_place(tab, file):
    page = tab.open(file)
    box = page.locator(".pager").bounding_box
    page.evaluate("document.querySelector('#students').scrollIntoView()")
    assert box()["y"] + box()["height"] <= 901  # the buttons are visible while the rows scroll
    page.evaluate("scrollTo(0, 1e6)")
    turn(page, "Next")
    top = page.locator("#students").bounding_box()["y"]
    assert -1 <= top <= 1


def test_the_printed_page_has_all_chosen_rows_and_no_buttons(tab, file, rows):
    page = tab.open(file)
    search(page, "graded")
    page.emulate_media(media="print")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert shown(page) == [row.student for row in rows if row.state == "graded"]
    assert not page.locator(".tools").is_visible() and not page.locator(".pager").is_visible()
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert len(shown(page)) == PAGE
