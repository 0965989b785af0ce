"""Another model's name is written into a request by the real service behind a real Envoy, in STREAMED mode.

The other modes are in `tests.e2e.matrix`.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from extproc.control.settings import RequestBodies
from tests.control.deciding import CHAT, HELLO, deciding
from tests.control.raw_requests import Answered, http1, http2
from tests.control.test_body_modes import BOTH, Post, long_body
from tests.core.aliases import Aliases
from tests.core.builders import MODEL

LONGER = "a-name-that-is-longer-than-the-models"
TRAILERS: dict[Post, dict[str, Any]] = {http1: {}, http2: {"trailers": (("x-checksum", "1"),)}}
ALIASED = partial(Aliases, {"auto": MODEL, LONGER: MODEL})


@BOTH
async def test_a_body_that_envoy_keeps_is_renamed_whole_and_once(post: Post, tmp_path: Path) -> None:
    """From a longer name and from a shorter one; in one chunk, in many, and with trailers after them."""
    async with deciding(tmp_path, body_mode=RequestBodies.STREAMED, make=ALIASED) as setup:
        for name in ("auto", LONGER):
            for body in (HELLO, long_body(600_000)):
                asked = body.replace(MODEL.encode(), name.encode())
                for pieces, how in (([asked], {}), ([asked[:9], asked[9:]], {}), ([asked], TRAILERS[post])):
                    answer = await post(setup.port, CHAT, pieces, **how)
                    assert answer == Answered(200, body)
                    (_, _, headers, _), *_ = setup.chosen.seen
                    assert setup.bodies() == [body]
                    assert headers.get("content-length", str(len(body))) == str(len(body))
