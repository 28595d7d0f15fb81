"""The application: the paths of OpenAI's API, from checked requests to responses.

    app = create_app(Engine(*load("tiny"), blocks=64), "tiny")

POST /v1/completions and /v1/chat/completions, GET /v1/models, and for those who watch the server
/health (it works), /ready (it takes requests) and /metrics. There is no page of documentation,
because FastAPI's loads scripts from elsewhere. Chapter: deployment/server.
"""

import asyncio
import difflib
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.middleware.cors import CORSMiddleware
from fastapi.responses import JSONResponse, Response, StreamingResponse

from course_pkg.deployment.engine_thread import Call
from course_pkg.deployment.errors import ApiError, invalid
from course_pkg.deployment.explain import explain
from course_pkg.deployment.guard import Gate, Guard
from course_pkg.deployment.limits import Limits
from course_pkg.deployment.metrics import Metrics
from course_pkg.deployment.responses import DONE, ChatAnswer, TextAnswer, event
from course_pkg.deployment.schemas import ChatRequest, CompletionRequest, GenerationRequest
from course_pkg.deployment.service import Service
from course_pkg.deployment.throughput import Throughput
from course_pkg.serving.engine import Engine


def create_app(
    engine: Engine,
    model: str,
    *,
    limits: Limits | None = None,
    key: str | None = None,
    origins: Sequence[str] = (),
) -> FastAPI:
    """An ASGI application that serves an engine, which from now on belongs to it.

    model: the base's name; each adapter is a model by its own. key: what clients must send.
    origins: of web pages whose scripts may use it; "*" means all.
    app.state has the gate, which `close` uses, and the service.

    >>> from course_pkg.lm.load import load
    >>> app = create_app(Engine(*load("tiny"), blocks=8), "tiny")
    >>> [each["id"] for each in app.state.service.models()]
    ['tiny']
    """
    limits = limits or Limits()
    service = Service(engine, model, limits)
    gate = Gate(engine.scheduler.max_sequences + limits.waiting)
    metrics = Metrics(engine, lambda: gate.open)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        service.thread.start()
        reporting = asyncio.create_task(Throughput(service.thread).report())
        try:
            yield
        finally:
            reporting.cancel()
            await service.stop()

    app = FastAPI(lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None)
    app.state.gate, app.state.service = gate, service
    app.add_middleware(Guard, gate=gate, limits=limits, metrics=metrics, key=key)
    if origins:  # around the guard: a browser asks first, without the key
        methods, headers = ["GET", "POST"], ["*"]
        app.add_middleware(
            CORSMiddleware, allow_origins=origins, allow_methods=methods, allow_headers=headers
        )

    def take_places(request: Request, body: GenerationRequest, prompts: int) -> None:
        service.check(body, prompts)
        samples = max(prompts * body.n, 1)
        if samples > gate.places:
            raise invalid(f"{samples} samples: this server takes {gate.places} at once", "n")
        request.scope["take"](samples - 1)  # the request itself has one

    def started(request: Request, call: Call, model: str) -> None:
        call.started = request.scope["arrived"]

        def finish() -> None:
            service.thread.close(call)
            metrics.finished(model, call)
            prompt = sum(map(len, call.prompts))
            request.scope["summary"] = f"{model}: {prompt} + {call.tokens} tokens"

        request.scope["cleanup"].callback(finish)

    @app.post("/v1/completions")
    async def complete(body: CompletionRequest, request: Request) -> Response:
        take_places(request, body, len(body.prompt))
        call = await service.complete(body)
        started(request, call, body.model)
        echo = await service.echo(body, call)
        answer = TextAnswer(
            call, body.model, service.texts, echo,
            scores_only=body.scores_only, service_tier=body.service_tier,
        )  # fmt: skip
        return await respond(body, answer)

    @app.post("/v1/chat/completions")
    async def chat(body: ChatRequest, request: Request) -> Response:
        take_places(request, body, 1)
        call = await service.chat(body)
        started(request, call, body.model)
        answer = ChatAnswer(call, body.model, service.texts, service_tier=body.service_tier)
        return await respond(body, answer)

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": service.models()}

    @app.get("/v1/models/{name:path}")
    async def model_by_name(name: str) -> dict[str, Any]:
        for each in service.models():
            if each["id"] == name:
                return each
        message = f"there is no model {name!r:.80}"
        raise ApiError(404, message, code="model_not_found", log="no such model")

    def state(good: bool) -> Response:
        return JSONResponse({"status": "ok" if good else "unavailable"}, 200 if good else 503)

    @app.api_route("/health", methods=["GET", "HEAD"])
    async def health() -> Response:
        return state(service.thread.alive)

    @app.api_route("/ready", methods=["GET", "HEAD"])
    async def ready() -> Response:
        return state(service.thread.alive and not gate.closing)

    @app.get("/metrics")
    async def read_metrics() -> Response:
        return Response(metrics.text(), media_type="text/plain; version=0.0.4")

    add_error_handlers(app)
    return app


async def respond(body: GenerationRequest, answer: TextAnswer) -> Response:
    """The whole answer, or a stream of events."""
    if not body.stream:
        pieces = [piece async for some in answer.call for piece in some]
        # Log-probabilities of thousands of tokens take seconds.
        return await asyncio.to_thread(lambda: JSONResponse(answer.whole(pieces)))
    usage = body.stream_options is not None and body.stream_options.include_usage
    return StreamingResponse(
        _events(answer, usage),
        media_type="text/event-stream",
        headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"},
    )


async def _events(answer: TextAnswer, usage: bool) -> AsyncIterator[bytes]:
    try:
        async for pieces in answer.call:
            yield answer.events(pieces, usage)
    except ApiError as error:  # the status has been sent
        yield event(error.body)
        return
    if usage:
        yield answer.usage_event()
    yield DONE


def right_path(path: str, paths: Sequence[str]) -> str:
    """Which of the server's paths a wrong one was meant to be, as the end of a message; or "".

    The message has the server's own path and never the client's, which may hold anything.

    >>> right_path("/api/v1/chat/completions/", ["/v1/completions", "/v1/chat/completions"])
    ': did you mean /v1/chat/completions? The base URL of a client ends in /v1'
    """
    asked = path.rstrip("/").lower()
    known = {each.partition("/{")[0] for each in paths}
    ends = [each for each in known if asked.endswith(each.removeprefix("/v1"))]
    if not ends:  # a misspelled one, or one with something behind it, such as a model's name
        starts = [each for each in known if f"{asked}/".startswith(f"{each.removeprefix('/v1')}/")]
        ends = starts or difflib.get_close_matches(asked, known, 1, 0.8)
    if not ends:
        return ""
    meant = max(ends, key=len)
    base = " The base URL of a client ends in /v1" if meant.startswith("/v1/") else ""
    return f": did you mean {meant}?{base}"


def add_error_handlers(app: FastAPI) -> None:
    """Answer every error in the form of OpenAI's API."""

    def response(error: ApiError) -> Response:
        # In ASCII: the message may repeat halves of surrogate pairs.
        return Response(json.dumps(error.body), error.status, error.headers, "application/json")

    async def api(request: Request, error: ApiError) -> Response:
        request.scope["summary"] = error.log
        return response(error)

    async def validation(request: Request, error: RequestValidationError) -> Response:
        return await api(request, explain(error.errors()))

    paths = [route.path for route in app.routes]

    async def http(status: int, message: str, request: Request, error: Exception) -> Response:
        if status == 404:
            message += right_path(request.scope["path"], paths)
        headers = getattr(error, "headers", None)
        return await api(request, ApiError(status, message, headers=headers))

    app.add_exception_handler(ApiError, api)
    app.add_exception_handler(RequestValidationError, validation)
    for status, message in (
        (400, "the body cannot be read as JSON"),
        (404, "there is no such path"),
        (405, "this path does not take this method"),
    ):
        app.add_exception_handler(status, partial(http, status, message))
    app.add_exception_handler(Exception, partial(http, 500, "the server failed"))
