"""From URLs, flags and the environment to one checked deployment."""

from __future__ import annotations

from pathlib import Path

import pytest

from extproc.adapters.redis_settings import Kind, Login, RedisSettings, Tls, parse, secret, without_login
from extproc.errors import ConfigError


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("redis://", RedisSettings(nodes=(("localhost", 6379),))),
        ("redis://h", RedisSettings(nodes=(("h", 6379),))),
        ("redis://h:7/3", RedisSettings(nodes=(("h", 7),), db=3)),
        ("redis://h?db=4", RedisSettings(nodes=(("h", 6379),), db=4)),
        ("redis://:p%40ss@h", RedisSettings(nodes=(("h", 6379),), login=Login("", "p@ss"))),
        ("redis://u:p@[::1]:7", RedisSettings(nodes=(("::1", 7),), login=Login("u", "p"))),
        ("rediss://h", RedisSettings(nodes=(("h", 6379),), tls=Tls())),
        (
            "rediss://h?ssl_check_hostname=false",
            RedisSettings(nodes=(("h", 6379),), tls=Tls(check_hostname=False)),
        ),
        ("unix:///run/redis.sock?db=2", RedisSettings(nodes=(), path="/run/redis.sock", db=2)),
        (
            "redis+sentinel://u:p@a,b:7/mymaster/2?sentinel_username=s&sentinel_password=t",
            RedisSettings(
                kind=Kind.SENTINEL,
                nodes=(("a", 26379), ("b", 7)),
                service="mymaster",
                db=2,
                login=Login("u", "p"),
                sentinel_login=Login("s", "t"),
            ),
        ),
        (
            "rediss+cluster://a,[::1]:7",
            RedisSettings(kind=Kind.CLUSTER, nodes=(("a", 6379), ("::1", 7)), tls=Tls()),
        ),
    ],
)
def test_a_url_is_read_as_people_write_it(url: str, expected: RedisSettings) -> None:
    assert parse(url) == expected


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("nonsense", "is not a Redis URL"),
        ("http://x", "is not a Redis URL"),
        ("redis+standalone://x", "is not a Redis URL"),
        ("redis://h:abc", "is not host:port"),
        ("redis://h:70000", "no port 70000"),
        ("redis://h/x", "database 'x' is not a number"),
        ("redis://h/1/2", "is not a database"),
        ("redis://a,b", r"write redis\+sentinel:// or redis\+cluster://"),
        ("redis+sentinel://a:1", "lacks the name of the primary"),
        ("redis+cluster://a/1", "a cluster has database 0 only"),
        ("redis+cluster://", "is not host:port"),
        ("redis://h?socket_timout=3", "'socket_timout' is not a field"),
        ("redis://h?sentinel_password=x", "is not a field"),
        ("rediss://h?ssl_ca_certs=/none/ca.pem", "cannot read /none/ca.pem"),
        ("redis://h?ssl_check_hostname=false", "write rediss instead of redis"),
    ],
)
def test_what_is_wrong_with_a_url_is_told_in_one_line_without_the_password(url: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told) as caught:
        parse(url.replace("://", "://user:sesame@"))
    assert "\n" not in str(caught.value)
    assert "sesame" not in str(caught.value)


def test_what_is_given_beside_the_url_goes_before_it() -> None:
    settings = parse("redis://u:p@h", username="other", password="word", prefix="llm")
    assert (settings.login, settings.prefix) == (Login("other", "word"), "llm")


def test_a_prefix_that_would_break_keys_is_refused() -> None:
    for prefix in ("", "a b", "{x}", "x" * 65):
        with pytest.raises(ConfigError, match="key prefix"):
            parse("redis://h", prefix=prefix)


def test_the_settings_never_show_a_password() -> None:
    settings = parse("redis+sentinel://u:sesame@a/m?sentinel_password=simsim")
    assert "sesame" not in repr(settings) + settings.where
    assert "simsim" not in repr(settings) + settings.where
    assert settings.where == "m (sentinels a:26379)"


def test_the_password_comes_from_a_file_or_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "password"
    path.write_text("of a file\n")
    for name in ("EXTPROC_REDIS_PASSWORD", "EXTPROC_REDIS_PASSWORD_FILE"):
        monkeypatch.delenv(name, raising=False)
    assert secret() == ""
    monkeypatch.setenv("EXTPROC_REDIS_PASSWORD", "of the environment")
    assert secret() == "of the environment"
    assert secret(str(path)) == "of a file"
    monkeypatch.setenv("EXTPROC_REDIS_PASSWORD_FILE", str(path))
    assert secret() == "of a file"
    with pytest.raises(ConfigError, match="cannot read the Redis password"):
        secret(str(tmp_path / "none"))


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://127.0.0.1:6379/0", "redis://127.0.0.1:6379/0"),
        ("redis://:pass@h/1?ssl_check_hostname=false", "redis://h/1?ssl_check_hostname=false"),
        ("rediss+cluster://me:p%40ss@[::1]:7000,b", "rediss+cluster://[::1]:7000,b"),
        (
            "redis+sentinel://me:pass@a,b/main?sentinel_username=u&sentinel_password=w&db=2",
            "redis+sentinel://a,b/main?db=2",
        ),
        ("unix://me:pass@/run/redis.sock", "unix:///run/redis.sock"),
        ("redis://me:p@s/s@h/1", "redis://h/1"),
        ("redis://me:p?s@h", "redis://"),
        ("redis://h?password=pass", "redis://h"),
    ],
)
def test_a_url_can_be_shown_without_its_logins(url: str, shown: str) -> None:
    """Also where a password that ought to be quoted is not."""
    assert without_login(url) == shown
