"""What images, sounds and documents are taken to be worth, by the bytes that are at hand."""

from __future__ import annotations

import base64
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.api import media

PNG = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + struct.pack(">II", 1120, 784)
GIF = b"GIF89a" + struct.pack("<HH", 1120, 784)
WEBP = b"RIFF\0\0\0\0WEBP"
VP8X = WEBP + b"VP8X" + bytes(8) + (1119).to_bytes(3, "little") + (783).to_bytes(3, "little")
VP8L = WEBP + b"VP8L" + bytes(4) + b"\x2f" + (1119 | 783 << 14).to_bytes(4, "little") + bytes(9)
VP8 = WEBP + b"VP8 " + bytes(10) + struct.pack("<HH", 1120, 784)
APP0 = b"\xff\xe0" + struct.pack(">H", 16) + bytes(14)
JPEG = b"\xff\xd8" + APP0 + b"\xff\xc2" + struct.pack(">HBHH", 17, 8, 784, 1120) + bytes(20)
WAV = b"RIFF\0\0\0\0WAVEfmt " + struct.pack("<IHHII", 16, 1, 1, 8000, 16_000)


@pytest.mark.parametrize("head", [PNG, GIF, VP8X, VP8L, VP8, JPEG], ids=["png", "gif", "vp8x", "vp8l", "vp8", "jpeg"])
def test_an_images_size_is_read_from_its_first_bytes(head: bytes) -> None:
    assert media.image_tokens(head) == 40 * 28
    assert media.image_tokens(memoryview(head)) == 40 * 28


@pytest.mark.parametrize(
    ("head", "tokens"),
    [
        (b"", media.IMAGE_TOKENS),
        (b"unknown", media.IMAGE_TOKENS),
        (PNG[:20], media.IMAGE_TOKENS),
        (JPEG[:20], media.IMAGE_TOKENS),
        (PNG[:16] + struct.pack(">II", 1, 1), media.LOW_DETAIL_TOKENS),
        (PNG[:16] + struct.pack(">II", 2**31, 2**31), media.MAX_IMAGE_TOKENS),
    ],
)
def test_other_images_count_as_a_usual_one_and_none_beyond_the_limits(head: bytes, tokens: int) -> None:
    assert media.image_tokens(head) == tokens


@pytest.mark.parametrize(
    ("head", "size_bytes", "seconds"),
    [(b"", 0, 30.0), (WAV, 32_000, 2.0), (WAV[:12], 32_000, 1.0), (b"ID3", 32_000, 2.0)],
)
def test_a_sounds_length_comes_from_its_size(head: bytes, size_bytes: int, seconds: float) -> None:
    assert media.audio_s(head, size_bytes) == seconds


@given(st.binary(max_size=64) | st.binary(max_size=64).map(lambda tail: JPEG[:2] + tail), st.integers(0, 10**9))
def test_no_bytes_are_worth_a_negative_or_unbounded_number_of_tokens(head: bytes, size_bytes: int) -> None:
    assert media.LOW_DETAIL_TOKENS <= media.image_tokens(head) <= media.MAX_IMAGE_TOKENS
    assert 0 <= media.audio_s(head, size_bytes) <= 30 + size_bytes / 1000
    assert media.document_tokens(size_bytes) >= media.PAGE_TOKENS


@given(st.binary(max_size=8192))
def test_base64_heads_are_what_was_encoded(data: bytes) -> None:
    head = media.head_of_base64(base64.b64encode(data).decode())
    assert data.startswith(head)
    assert len(head) == min(len(data), 6144)


@given(st.text())
def test_what_is_no_base64_has_no_head_and_raises_nothing(data: str) -> None:
    assert isinstance(media.head_of_base64(data), bytes)
