"""The two sides of the engine's thread: cancellation, backlog, deadlines, the end."""

import asyncio

import pytest

from course_pkg.deployment.api_errors import ApiError
from course_pkg.deployment.engine_thread import Call, EngineThread
from course_pkg.serving.request import Chunk
from course_pkg.serving.sampling import SamplingParams
from tests.tables import each_row
from tests.waiting import wait_until

from .live import tiny_engine, until

LONG = SamplingParams(max_tokens=1000, temperature=0, ignore_eos=True)


def call(prompts=((65, 66),), params=LONG):
    return Call([list(prompt) for prompt in prompts], params, None)


def run(scenario, engine=None, backlog=10_000):
    """Run a scenario with a thread; at the end nothing is left in the engine."""
    engine = engine or tiny_engine()

    async def main():
        thread = EngineThread(engine, backlog)
        thread.start()
        try:
            return await scenario(thread)
        finally:
            await thread.stop()
            assert not thread.alive and not engine.requests and not engine.scheduler.has_work

    return asyncio.run(main())


def test_a_submission_that_is_given_up_is_aborted():
    engine = tiny_engine()
    seen = []
    add = engine.add

    def slow_add(*args, **options):
        seen.append(add(*args, **options))
        wait_until(lambda: seen[1:])  # until the submission is given up
        return seen[0]

    engine.add = slow_add

    async def scenario(thread):
        task = asyncio.ensure_future(thread.submit(call()))
        await until(lambda: seen)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        seen.append("given up")
        await until(lambda: not engine.requests)

    run(scenario, engine)
    assert seen[0].completions[0].finish_reason == "abort"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_if_the_thread_dies_of_a_bug_nobody_waits_for_it():
    async def scenario(thread):
        running = call()
        await thread.submit(running)
        await anext(running)
        commands = thread._commands
        commands.put(lambda: wait_until(lambda: commands.qsize() == 2))  # a call comes meanwhile
        thread._commands.put(lambda: 1 / 0)
        with pytest.raises(ApiError, match="the engine failed"):
            await thread.submit(call())
        with pytest.raises(ApiError, match="the engine failed") as failed:
            async for _ in running:
                pass
        assert failed.value.status == 500

    run(scenario)


@each_row(("broken", "status"), [(False, 400), (True, 500)])
def test_if_one_prompt_is_refused_or_cannot_be_added_none_runs(broken, status):
    engine = tiny_engine()
    add = engine.add

    def fails(prompt, *arguments, **options):
        if broken and prompt == [999]:
            raise RuntimeError("broken")
        return add(prompt, *arguments, **options)

    engine.add = fails

    async def scenario(thread):
        with pytest.raises(ApiError, match=r"the engine failed|0 to 258") as refused:
            await thread.submit(call([[65], [999]]))
        assert refused.value.status == status
        await until(lambda: not thread.engine.requests)

    run(scenario, engine)


def test_a_call_that_nobody_reads_is_aborted_at_the_backlog():
    async def scenario(thread):
        unread = call()
        await thread.submit(unread)
        await until(lambda: unread.done and not thread.engine.requests)
        with pytest.raises(ApiError, match="more than 20 tokens behind"):
            await anext(unread)
        assert unread.requests[0].completions[0].finish_reason == "abort"
        return unread.tokens

    assert 20 < run(scenario, backlog=20) < 60


def test_the_deadline_holds_also_if_chunks_always_wait():
    async def scenario():
        late = call()
        late.put([Chunk(None, 65, "a", None, None)], 5)
        assert len(await anext(late)) == 1
        late.put([Chunk(None, 65, "a", None, None)], 5)
        late.deadline = asyncio.get_running_loop().time()
        with pytest.raises(ApiError, match="too long") as error:
            await anext(late)
        assert error.value.status == 504

    asyncio.run(scenario())


@each_row("reason", [None, "stop"])
def test_an_error_drops_what_was_not_read_and_comes_too_late_after_the_end(reason):
    async def scenario():
        asked = call()
        asked.put([Chunk(None, 65, "a", None, reason)], 5)
        asked.fail(ApiError(500, "broken"))
        asked.fail(ApiError(500, "again"))
        if reason:
            assert [c.text for some in [part async for part in asked] for c in some] == ["a"]
        else:
            with pytest.raises(ApiError, match="broken"):
                await anext(asked)

    asyncio.run(scenario())
