"""The command `course eval`: a model on a task, with error bars, a record and a report."""

import re
import sys
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from course_pkg.cli.exits import NEEDS_A_LOOK
from course_pkg.cli.scheduler_options import TlsCa, TlsCert, TlsKey, scheduler_of_options
from course_pkg.common.terminal import duration_in_words, for_terminal

if TYPE_CHECKING:
    from course_pkg.common.scheduler_address import SchedulerAddress
    from course_pkg.evaluation.run_record import RunRecord
    from course_pkg.evaluation.task import Task
    from course_pkg.evaluation.task_run import Model

SAID_EVERY_S = 30  # in a pipe
MOST_REASONS = 3  # of items that failed


def add_to(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command("eval")(evaluate)


def evaluate(
    task: Annotated[
        str | None,
        typer.Option(help="A task's name, its TOML file, or public:gsm8k.", show_default=False),
    ] = None,
    model: Annotated[
        str, typer.Option(help="Name, hub id, folder, or http(s) address up to /v1.")
    ] = "smollm2-135m",
    adapter: Annotated[Path | None, typer.Option(help="Folder of an adapter.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Ask for so many items only.")] = None,
    output: Annotated[
        Path | None, typer.Option(help="Folder [default: evaluations/<task>/<model>]")
    ] = None,
    device: Annotated[str | None, typer.Option(help="Such as cuda, or auto [default: cpu]")] = None,
    dtype: Annotated[str, typer.Option(help="float32, bfloat16 or float16.")] = "float32",
    served_model_name: Annotated[
        str | None, typer.Option(help="The model's name at the address [default: its only one]")
    ] = None,
    concurrency: Annotated[
        int | None, typer.Option(min=1, max=256, help="Requests at once at an address [default: 8]")
    ] = None,
    timeout: Annotated[
        float | None, typer.Option(min=1, help="Seconds for a request there [default: 120]")
    ] = None,
    extra_body: Annotated[
        str | None, typer.Option(help="JSON object, added to the body of each request there.")
    ] = None,
    scheduler: Annotated[
        str | None, typer.Option(help="Spread the items over the Dask cluster at this address.")
    ] = None,
    tls_ca: TlsCa = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    lm_eval: Annotated[
        Path | None, typer.Option(help="Write the task for lm-eval into a folder; run nothing.")
    ] = None,
    compare: Annotated[
        tuple[Path, Path] | None,
        typer.Option(
            metavar="<path> <path>",
            help="Folders of two runs: is the second one better?",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Evaluate a model on a task, or compare two runs.

    The same command continues a run that was stopped. At an address, COURSE_REMOTE_API_KEY is sent
    as the key; without it, on this machine alone, COURSE_API_KEY. A server that refuses max_tokens,
    more than 4 stop strings or temperature 0 is asked otherwise, and you are told. Answers that are
    empty, cut or refused count as wrong, and are counted. Workers of a --scheduler load the same
    model and adapter, from paths that are the same there; trust them as this machine, because what
    they send is unpickled here. Exit code 0: every item has a score. 1: the model failed on some.
    2: not possible as asked. 4: the server, the cluster or the machine failed; what was answered is
    kept. 130: interrupted.
    """
    from course_pkg.evaluation.run_errors import RunError

    if compare is not None:
        _print_comparison(*compare)
        return
    if task is None:
        raise RunError("give --task, a name or a TOML file, or --compare with two folders")
    chosen = _find_task(task)
    if lm_eval is not None:
        from course_pkg.evaluation.lm_eval_export import export_to_lm_eval

        path = export_to_lm_eval(chosen, lm_eval)
        typer.echo(f"{path}\nrun it: lm_eval run --include_path {lm_eval} --tasks {chosen.name}")
        return
    from course_pkg.evaluation.task_run import run_task

    if adapter is not None and not chosen.chat:
        _say_if_chats(adapter, chosen.name)
    at_address = {"served_model_name": served_model_name, "concurrency": concurrency}
    at_address |= {"timeout": timeout, "extra_body": extra_body}
    loaded = _load(model, adapter, device, dtype, at_address)
    at = scheduler_of_options(scheduler, tls_ca, tls_cert, tls_key)
    if at is not None:
        loaded = _on_cluster(loaded, at, model, adapter, device, dtype)
    folder = output or Path("evaluations", chosen.name, _file_name(loaded))
    with _Progress() as progress:
        run = run_task(chosen, loaded, folder, limit=limit, progress=progress.show)
    _print_scores(run.record)
    typer.echo(f"samples: {folder / 'report.html'}   record: {folder / 'record.json'}")
    for note in run.record.notes:
        typer.echo(for_terminal(f"note: {note}"))
    if run.record.failed:
        _print_failures(run.record)
        raise typer.Exit(NEEDS_A_LOOK)


def _say_if_chats(adapter: Path, task: str) -> None:
    """Say that an adapter of `course finetune` reads other prompts than it was trained with."""
    from course_pkg.finetuning.own_data.result import trained_on_chats

    if trained_on_chats(adapter):
        typer.echo(
            f"note: {adapter} was trained on chats, and the task {task} has plain prompts; "
            'a task with "chat = true" under [prompt] asks as `course chat` does',
            err=True,
        )


def _find_task(name: str) -> "Task":
    if name.startswith("public:"):
        from course_pkg.evaluation.public_sets.loading import public_task

        return public_task(name)
    from course_pkg.evaluation.task_file import load_task

    return load_task(name)


def _load(
    model: str, adapter: Path | None, device: str | None, dtype: str, at_address: dict[str, Any]
) -> "Model":
    """A model here, or behind an address. Raises RunError for options that don't go together."""
    from course_pkg.evaluation.run_errors import RunError

    if re.match(r"https?://", model):
        if adapter is not None or device is not None:
            raise RunError(
                "--adapter and --device are for a model on this machine: at an address, name the "
                "adapter with --served-model-name, as `course serve` calls it"
            )
        return _at_address(model, **at_address)
    for name, value in at_address.items():
        if value is not None:
            option = name.replace("_", "-")
            raise RunError(f"--{option} is for a --model that is an http(s) address")
    from course_pkg.evaluation.local_model import load_model

    return load_model(model, adapter, device=device, dtype=dtype)


def _at_address(
    address: str,
    served_model_name: str | None,
    concurrency: int | None,
    timeout: float | None,
    extra_body: str | None,
) -> "Model":
    from course_pkg.common.http_client import HttpClient, key_for
    from course_pkg.common.json_reading import parse_json
    from course_pkg.evaluation.run_errors import RunError
    from course_pkg.evaluation.server_model import AT_ONCE, ServerModel

    try:
        extra = parse_json(extra_body or "{}")
        if not isinstance(extra, dict):
            raise ValueError("it must be an object")
    except ValueError as error:
        raise RunError(
            f'--extra-body {extra_body!r:.80}: {error}; write, for example, {{"top_k": 1}}'
        ) from None
    times = {} if timeout is None else {"timeout": timeout}
    client = HttpClient(address, key_for(address), **times)
    return ServerModel(client, served_model_name, at_once=concurrency or AT_ONCE, extra=extra)


def _on_cluster(
    local: "Model",
    at: "SchedulerAddress",
    model: str,
    adapter: Path | None,
    device: str | None,
    dtype: str,
) -> "Model":
    """The same model on a cluster's workers. Raises RunError for one behind an address."""
    from course_pkg.evaluation.cluster_model import ClusterModel, Loading
    from course_pkg.evaluation.local_model import LocalModel
    from course_pkg.evaluation.run_errors import RunError

    if not isinstance(local, LocalModel):
        raise RunError("--scheduler is for a model that the workers load, not for an address")
    path = None if adapter is None else str(adapter.resolve())
    name = str(Path(model).resolve()) if Path(model).is_dir() else model
    return ClusterModel(local, Loading(name, path, device, dtype), at.address, at.security)


def _file_name(model: "Model") -> str:
    adapter = model.identity.get("adapter")
    parts = [model.identity["model"], Path(adapter).name if adapter else ""]
    name = "+".join(re.sub(r"[^\w.-]+", "-", part).strip("-.") for part in parts if part)
    return name or "model"


def _print_scores(record: "RunRecord") -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    groups = "" if record.groups is None else f", 95% intervals by {record.groups} groups"
    about = f"{record.task['name']}, {record.name}: {len(record.samples)} items{groups}"
    typer.echo(for_terminal(about))
    table = Table("score", "mean", "95% interval", "items", box=None, padding=(0, 3, 0, 0))
    for score in record.scores:
        interval = "" if score.low is None else f"{score.low:z.3f} to {score.high:z.3f}"
        style = "bold" if score.name == record.metric else ""
        table.add_row(
            Text(score.name), f"{score.mean:z.3f}", interval, str(score.items), style=style
        )
    Console(width=80).print(table)
    if record.score is not None and record.score.low is None:
        typer.echo("an interval needs 5 independent items or groups")


def _print_failures(record: "RunRecord") -> None:
    typer.echo(f"{record.failed} items failed: see the report; run again to ask for them")
    reasons = Counter(sample.error for sample in record.samples if sample.error is not None)
    for reason, count in reasons.most_common(MOST_REASONS):
        typer.echo(for_terminal(f"  {count} × {reason}"))


def _print_comparison(first: Path, second: Path) -> None:
    from course_pkg.evaluation.run_record import compare_records, read_record

    baseline = read_record(first)
    system = read_record(second)
    runs = compare_records(baseline, system)
    result = runs.comparison
    for name, record, mean in (
        ("baseline", baseline, runs.baseline_mean),
        ("system", system, runs.system_mean),
    ):
        about = f"{name:9} {mean:z.3f}  {record.task['name']}, {record.name}"
        typer.echo(for_terminal(about))
    interval = result.difference
    if result.wins + result.losses and interval.low == interval.high:
        typer.echo(
            f"difference {interval.estimate:+.3f} everywhere, which gives no interval; "
            f"p = {result.p_value:.2g} by the sign test over {result.items} items or their groups"
        )
    elif result.wins + result.losses:
        typer.echo(
            f"difference {interval.estimate:+z.3f}, 95% interval {interval.low:+z.3f} to "
            f"{interval.high:+z.3f}, p = {result.p_value:.2g}"
        )
        typer.echo(
            f"{result.items} items: {result.wins} better, {result.losses} worse; "
            f"paired variance / unpaired: {result.variance_ratio:.2f}"
        )
    else:
        typer.echo(f"the scores of all {result.items} items are the same in both runs")
    if runs.left_out:
        typer.echo(f"left out: {runs.left_out} items that only one of the runs has scored")
    for note in runs.notes:
        typer.echo(for_terminal(f"note: {note}"))


class _Progress:
    """Items done and the time left, on stderr: one line on a terminal, now and then in a pipe."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._said = self._began
        self._before: int | None = None  # samples of an earlier process
        self._live = sys.stderr.isatty()
        self._text = ""

    def __enter__(self) -> "_Progress":
        return self

    def __exit__(self, *_: object) -> None:
        if self._live and self._before is not None:
            sys.stderr.write("\n")

    def show(self, done: int, total: int) -> None:
        now = time.monotonic()
        if self._before is None:
            self._before = done
            self._began = now
        text = f"{done} of {total} items{self._left(done, total, now)}"
        is_new = text != self._text
        self._text = text
        if self._live and is_new:
            sys.stderr.write(f"\r\x1b[K{text}")
            sys.stderr.flush()
        if self._live:
            return
        at_an_end = done in (self._before, total)
        if (at_an_end and is_new) or now - self._said >= SAID_EVERY_S:
            self._said = now
            print(text, file=sys.stderr, flush=True)

    def _left(self, done: int, total: int, now: float) -> str:
        assert self._before is not None
        if done == self._before or done == total:
            return ""
        seconds = (now - self._began) / (done - self._before) * (total - done)
        return f", about {duration_in_words(seconds)} left"
