"""A PostgreSQL server of the tests' own, if one is installed, for courses' gradebooks."""

import importlib.util
import os
import pwd
import shutil
import subprocess
import tempfile
from pathlib import Path

PROGRAMS = [*map(str, Path("/usr/lib/postgresql").glob("*/bin")), os.environ.get("PATH", "")]
INITDB = shutil.which("initdb", path=os.pathsep.join(PROGRAMS))


def missing() -> str:
    """What these tests need and this machine lacks; "" if nothing."""
    if INITDB is None:
        return "no PostgreSQL: apt-get install postgresql"
    if importlib.util.find_spec("psycopg") is None:
        return "no driver for PostgreSQL: pip install 'psycopg[binary]'"
    if os.geteuid() == 0 and "postgres" not in {user.pw_name for user in pwd.getpwall()}:
        return "no user postgres, and PostgreSQL does not run as root"
    return ""


class Server:
    """A server on a socket in a folder of its own, whose time zone is far from UTC."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="pg"))  # short: a socket's path has 107 bytes
        self.user = "postgres" if os.geteuid() == 0 else None
        if self.user:
            shutil.chown(self.folder, self.user)
        self._run(INITDB, "-A", "trust", "-U", "postgres", "-E", "UTF8", "--locale=C", "--no-sync")
        self.start()

    def start(self) -> None:
        options = f"-k {self.folder} -c listen_addresses= -c timezone=Asia/Shanghai -c fsync=off"
        self._run(self._program("pg_ctl"), "-w", "-o", options, "-l", self.folder / "log", "start")

    def stop(self) -> None:
        self._run(self._program("pg_ctl"), "-m", "immediate", "stop")

    def url(self, database: str) -> str:
        return f"postgresql+psycopg://postgres@/{database}?host={self.folder}"

    def database(self, name: str, like: str = "template1") -> str:
        """The URL of a new database, a copy of another one, by default empty."""
        self.ask("postgres", f'CREATE DATABASE "{name}" TEMPLATE "{like}"')
        return self.url(name)

    def ask(self, database: str, question: str) -> list[tuple]:
        import psycopg

        where = f"host={self.folder} user=postgres dbname={database}"
        with psycopg.connect(where, autocommit=True) as connection:
            done = connection.execute(question)
            return done.fetchall() if done.description else []

    def close(self) -> None:
        self.stop()
        shutil.rmtree(self.folder)

    def _program(self, name: str) -> Path:
        return Path(INITDB).with_name(name)

    def _run(self, *command: object) -> None:
        done = subprocess.run(
            [*map(str, command), "-D", str(self.folder / "data")],
            user=self.user,
            cwd="/",
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            extra_groups=[] if self.user else None,
        )
        assert done.returncode == 0, done.stdout


def use(course: Path, url: str) -> None:
    with (course / "nbgrader_config.py").open("a") as file:
        file.write(f'\nc.CourseDirectory.db_url = "{url}"\n')
