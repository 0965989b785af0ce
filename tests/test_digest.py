"""`extproc digest` names tenants as the service does."""

from __future__ import annotations

import io

import pytest

from extproc.api.caller import Trust, caller_of
from extproc.cli import main


@pytest.mark.parametrize(
    ("header", "line", "value"),
    [
        ("authorization", "sk-1", "Bearer sk-1"),
        ("authorization", "  Bearer sk-1 ", "Bearer sk-1"),
        ("authorization", "Basic dTpw", "Basic dTpw"),
        ("x-api-key", "sk-ant-1", "sk-ant-1"),
    ],
)
def test_a_digest_is_the_tenant_of_whoever_sends_the_key(
    header: str, line: str, value: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Read from standard input, one a line."""
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{line}\n\n{line}\n"))
    assert main(["digest", "--tenant-header", header]) == 0
    tenant = caller_of({header: value}, Trust(tenant_header=header)).tenant
    assert capsys.readouterr().out == f"{tenant}\n{tenant}\n"
    assert len(tenant) == 32
    assert value not in tenant


def test_other_headers_have_no_digest(capsys: pytest.CaptureFixture[str]) -> None:
    """Their value is the name."""
    assert main(["digest", "--tenant-header", "x-tenant"]) == 2
    assert "known by its very value" in capsys.readouterr().err
