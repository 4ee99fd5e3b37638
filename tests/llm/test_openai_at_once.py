"""How many calls one client keeps in flight: as many as the gateway lets through, not as many as a library's default."""

from __future__ import annotations

import asyncio

from aiohttp import web

import flashevolve_lab as lab

MANY = 250


def test_hundreds_of_calls_are_in_flight_at_once() -> None:
    assert asyncio.run(most_in_flight()) == MANY


async def most_in_flight() -> int:
    """Every call is answered only once all have arrived."""
    arrived, everyone = 0, asyncio.Event()

    async def answer(request: web.Request) -> web.Response:
        nonlocal arrived
        arrived += 1
        if arrived == MANY:
            everyone.set()
        await everyone.wait()
        message = {"message": {"content": "yes"}, "finish_reason": "stop"}
        return web.json_response({"choices": [message], "model": "m"})

    app = web.Application()
    app.router.add_post("/v1/chat/completions", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = site._server.sockets[0].getsockname()[1]  # type: ignore[union-attr]
    model = lab.OpenAI(f"http://127.0.0.1:{port}/v1", model="m")
    try:
        async with asyncio.timeout(30):
            await asyncio.gather(*(model.complete(lab.Request(({"role": "user", "content": "?"},))) for _ in range(MANY)))
    finally:
        await model.aclose()
        await runner.cleanup()
    return arrived
