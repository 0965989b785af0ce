"""How many tokens an image, a sound, a film or a document is worth before any engine has looked at it.

Engines differ (a fixed count, tiles, patches), so these are estimates that stand in the middle of published rules:

* image with `detail: low`: 85 (OpenAI, "Images and vision").
* image of known size: one token for 28 x 28 pixels (Qwen2-VL, patches of 14 merged 2 x 2; Anthropic's rule of
  width x height / 750 is within 5 % of it), within 85 and 16,384 (Qwen2.5-VL's `max_pixels`).
* image of unknown size: 765, what OpenAI counts for 1024 x 1024 (85 + 4 tiles of 170).
* audio: 25 tokens a second (Qwen2-Audio and Qwen2.5-Omni: a frame stands for 40 ms). Whisper's encoder computes 50
  a second (1,500 for its window of 30 s), see `openai_audio`.
* video: 4,096, that is 32 frames (vLLM's `num_frames`), merged by two, of 256 tokens.
* document: 2,000 tokens a page (Anthropic: 1,500 to 3,000) and 50 KB a page.
"""

from __future__ import annotations

import binascii
from struct import unpack_from

LOW_DETAIL_TOKENS = 85
IMAGE_TOKENS = 765
MAX_IMAGE_TOKENS = 16_384
VIDEO_TOKENS = 4096
PAGE_TOKENS = 2000
AUDIO_TOKENS_PER_S = 25.0

_PIXELS_PER_TOKEN = 28 * 28
_PAGE_BYTES = 50_000
_UNKNOWN_AUDIO_S = 30.0  # of a sound that only an address is known of
_COMPRESSED_BYTES_PER_S = 16_000  # MP3 and its like at 128 kbit/s
_PCM_BYTES_PER_S = 32_000  # 16 kHz, 16 bit, mono: what speech recognisers are fed with
_LEAST_BYTES_PER_S = 1000  # of a WAV file; less than that is not speech
HEAD_CHARS = 8192  # of base64 are looked at
_HEAD_BYTES = HEAD_CHARS // 4 * 3  # an image's size stands in its first bytes; a JPEG has its metadata before it
Data = bytes | bytearray | memoryview


def image_tokens(head: Data, detail: str = "") -> int:
    """Tokens of an image by its first bytes (b"" if they are not known) and OpenAI's `detail`."""
    if detail == "low":
        return LOW_DETAIL_TOKENS
    size = _size_of(bytes(head[:_HEAD_BYTES]))
    if size is None:
        return IMAGE_TOKENS
    return min(MAX_IMAGE_TOKENS, max(LOW_DETAIL_TOKENS, size[0] * size[1] // _PIXELS_PER_TOKEN))


def audio_s(head: Data, size_bytes: int) -> float:
    """Seconds of a sound by its first bytes and its size; 30 s if nothing of it is known (`size_bytes` 0)."""
    if not size_bytes:
        return _UNKNOWN_AUDIO_S
    start = bytes(head[:32])
    if start[:4] != b"RIFF" or start[8:12] != b"WAVE":
        return size_bytes / _COMPRESSED_BYTES_PER_S
    if start[12:16] != b"fmt " or len(start) < 32:
        return size_bytes / _PCM_BYTES_PER_S
    bytes_per_s: int = unpack_from("<I", start, 28)[0]
    return size_bytes / max(_LEAST_BYTES_PER_S, bytes_per_s)


def document_tokens(size_bytes: int) -> int:
    """Tokens of a PDF or the like by its size; one page if that is not known."""
    return PAGE_TOKENS * max(1, round(size_bytes / _PAGE_BYTES))


def head_of_base64(data: str) -> bytes:
    """First bytes of base64 text; b"" if it is none."""
    try:
        return binascii.a2b_base64(data[:HEAD_CHARS])
    except ValueError:
        return b""


def _size_of(head: bytes) -> tuple[int, int] | None:
    """Width and height in pixels of a PNG, GIF, WebP or JPEG."""
    if head[:8] == b"\x89PNG\r\n\x1a\n" and len(head) >= 24:
        width, height = unpack_from(">II", head, 16)
    elif head[:4] == b"GIF8" and len(head) >= 10:
        width, height = unpack_from("<HH", head, 6)
    elif head[:4] == b"RIFF" and head[8:12] == b"WEBP" and len(head) >= 30:
        return _webp_size(head)
    elif head[:2] == b"\xff\xd8":
        return _jpeg_size(head)
    else:
        return None
    return width, height


def _webp_size(head: bytes) -> tuple[int, int] | None:
    """Size in a WebP's first chunk (RFC 9649): extended, lossless or lossy."""
    kind = head[12:16]
    if kind == b"VP8X":
        return int.from_bytes(head[24:27], "little") + 1, int.from_bytes(head[27:30], "little") + 1
    if kind == b"VP8L":
        bits = int.from_bytes(head[21:25], "little")
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    if kind == b"VP8 ":
        width, height = unpack_from("<HH", head, 26)
        return width & 0x3FFF, height & 0x3FFF
    return None


def _jpeg_size(head: bytes) -> tuple[int, int] | None:
    """Size in a JPEG's frame header (ITU-T T.81, B.2.2), which comes after any number of other segments."""
    at = 2
    while at + 9 <= len(head) and head[at] == 0xFF:
        marker = head[at + 1]
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            height, width = unpack_from(">HH", head, at + 5)
            return width, height
        at += 2 + unpack_from(">H", head, at + 2)[0]
    return None
