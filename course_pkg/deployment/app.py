"""The application: the paths of OpenAI's API, from checked requests to responses.

POST /v1/completions and /v1/chat/completions, GET /v1/models, and for those who watch the server
/health (it works), /ready (it takes requests) and /metrics.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request
from fastapi.middleware.cors import CORSMiddleware
from fastapi.responses import JSONResponse, Response, StreamingResponse

from course_pkg.deployment.admission import Gate, Limits
from course_pkg.deployment.api_errors import ApiError, invalid
from course_pkg.deployment.engine_thread import Call
from course_pkg.deployment.error_responses import add_error_handlers
from course_pkg.deployment.guard import Guard
from course_pkg.deployment.monitoring import Metrics, Throughput
from course_pkg.deployment.responses import DONE, ChatAnswer, TextAnswer, event
from course_pkg.deployment.schemas import ChatRequest, CompletionRequest, GenerationRequest
from course_pkg.deployment.service import Service
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

    Args:
        model: the base's name; each adapter is a model by its own.
        key: what clients must send.
        origins: of web pages whose scripts may use it; "*" means all.
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
    app.state.gate = gate
    app.state.service = service
    app.add_middleware(Guard, gate=gate, limits=limits, metrics=metrics, key=key)
    if origins:  # around the guard: a browser asks first, without the key
        app.add_middleware(
            CORSMiddleware,
            allow_origins=origins,
            allow_methods=["GET", "POST"],
            allow_headers=["*"],
        )

    def take_places(request: Request, body: GenerationRequest, prompts: int) -> None:
        service.check(body, prompts)
        samples = max(prompts * body.n, 1)
        if samples > gate.places:
            raise invalid(f"{samples} samples: this server takes {gate.places} at once", "n")
        request.scope["places"].take(samples - 1)  # the request itself has one

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
        call = await service.complete(body, request.scope["places"].left)
        started(request, call, body.model)
        echo = await service.echo(body)
        return await respond(body, TextAnswer(call, body, service.texts, echo))

    @app.post("/v1/chat/completions")
    async def chat(body: ChatRequest, request: Request) -> Response:
        take_places(request, body, 1)
        call = await service.chat(body, request.scope["places"].left)
        started(request, call, body.model)
        return await respond(body, ChatAnswer(call, body, service.texts))

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": service.models()}

    @app.get("/v1/models/{name:path}")
    async def model_by_name(name: str) -> dict[str, Any]:
        models = [model for model in service.models() if model["id"] == name]
        if not models:
            message = f"there is no model {name!r:.80}"
            raise ApiError(404, message, code="model_not_found", log="no such model")
        return models[0]

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
        chunks = [chunk async for some in answer.call for chunk in some]
        # Log-probabilities of thousands of tokens take seconds.
        return await asyncio.to_thread(lambda: JSONResponse(answer.whole(chunks)))
    usage = body.stream_options is not None and body.stream_options.include_usage
    return StreamingResponse(
        _events(answer, usage),
        media_type="text/event-stream",
        headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"},
    )


async def _events(answer: TextAnswer, usage: bool) -> AsyncIterator[bytes]:
    try:
        async for chunks in answer.call:
            yield answer.events(chunks, usage)
    except ApiError as error:  # the status has been sent
        yield event(error.body)
        return
    if usage:
        yield answer.usage_event()
    yield DONE
