"""Keeps a view on the screen up to date while something else runs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

from rich.console import Console, RenderableType
from rich.live import Live

_REFRESH_S = 0.25


@asynccontextmanager
async def live(console: Console, view: Callable[[], Awaitable[RenderableType]]) -> AsyncIterator[None]:
    """Draw `view` again and again while the body runs; nothing is drawn where there is no terminal."""
    if not console.is_terminal:
        yield
        return
    with Live(console=console, auto_refresh=False, transient=True) as screen:
        drawing = asyncio.create_task(_draw(screen, view))
        try:
            yield
        finally:
            drawing.cancel()
            with suppress(asyncio.CancelledError):
                await drawing


async def _draw(screen: Live, view: Callable[[], Awaitable[RenderableType]]) -> None:
    while True:
        screen.update(await view(), refresh=True)
        await asyncio.sleep(_REFRESH_S)
