"""The flags that say where Redis is and which fleet of it, the same for every command that uses it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from extproc.adapters.redis_settings import DEFAULT_URL, RedisSettings, parse, secret

if TYPE_CHECKING:
    import argparse


def add_redis_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags."""
    group = parser.add_argument_group("Redis")
    group.add_argument(
        "--redis-url",
        default=DEFAULT_URL,
        metavar="URL",
        help="redis://HOST:PORT, redis+sentinel://HOST:PORT,HOST:PORT/NAME or redis+cluster://HOST:PORT,HOST:PORT; "
        "rediss instead of redis for TLS "
        f"(default: {DEFAULT_URL})",  # not the value: it may hold a password
    )
    group.add_argument("--redis-user", default="", metavar="NAME", help="ACL user")
    group.add_argument(
        "--redis-password-file",
        default="",
        metavar="FILE",
        help="holds the password (default: none, the password is EXTPROC_REDIS_PASSWORD)",
    )
    for flag, what in (
        ("ca", "authorities that sign its certificates (default: the system's)"),
        ("cert", "our certificate, if it asks for one"),
        ("key", "our certificate's key"),
    ):
        group.add_argument(f"--redis-{flag}", default="", metavar="FILE.pem", help=what)
    group.add_argument(
        "--redis-prefix",
        default="extproc",
        metavar="TEXT",
        help="what every key and channel begins with (default: %(default)s)",
    )
    group.add_argument(
        "--fleet",
        default="default",
        metavar="NAME",
        help="name of the fleet (default: %(default)s)",
    )


def redis_settings(args: argparse.Namespace) -> RedisSettings:
    """The settings that the flags make, with the password of the environment. Raises ConfigError."""
    return parse(
        args.redis_url,
        username=args.redis_user,
        password=secret(args.redis_password_file),
        ca_file=args.redis_ca,
        cert_file=args.redis_cert,
        key_file=args.redis_key,
        prefix=args.redis_prefix,
    )
