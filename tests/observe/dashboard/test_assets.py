"""The dashboard's files: complete, all from here, and never a text read as markup."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator

import pytest
from aiohttp import web

from extproc.adapters.http_client import Answer, HttpClient
from extproc.core.reasons.explanation import terms
from extproc.core.values.decision import Cost
from extproc.observe.dashboard.assets import HEADERS, PAGE, read_assets
from extproc.server.dashboard_pages import add_dashboard
from extproc.server.http_pages import HttpPages
from tests.observe.dashboard.pages import TERMS

ASSETS = {name: asset.body.decode() for name, asset in read_assets().items()}
SCRIPTS = {name: text for name, text in ASSETS.items() if name.endswith(".js")}


@pytest.fixture
async def url() -> AsyncIterator[str]:
    app = web.Application()
    add_dashboard(app)
    pages = HttpPages(app)
    port = await pages.start(("127.0.0.1", 0))
    yield f"http://127.0.0.1:{port}"
    await pages.stop()


async def test_the_page_and_all_that_it_names_is_served_under_a_strict_policy(url: str) -> None:
    """Whatever a page or a script refers to is there; what it does not name is not."""
    import aiohttp

    async with aiohttp.ClientSession() as session:
        for path in ("/", "/dashboard", *(f"/dashboard/{name}" for name in ASSETS if name != PAGE)):
            async with session.get(url + path) as answer:
                assert answer.status == 200, path
                policy = answer.headers["content-security-policy"]
                assert "default-src 'none'" in policy
                assert "unsafe" not in policy
                assert answer.headers["x-content-type-options"] == "nosniff"
    async with HttpClient() as client:
        for path in ("/dashboard/page.html", "/dashboard/__init__.py", "/dashboard/..%2fassets.py", "/dashboard/"):
            answer = await client.get(url + path)
            assert isinstance(answer, Answer)
            assert answer.status == 404, path


def test_each_term_of_the_cost_has_a_colour_of_its_own() -> None:
    """One without would look like any other that has none, in bars and legend."""
    cost = Cost(**dict.fromkeys(Cost.__struct_fields__, 0.0))
    coloured = re.findall(r"^\.term\.(\w+) \{ background: (.+); \}$", ASSETS["page.css"], re.MULTILINE)
    assert {name for name, _ in coloured} == set(terms(cost)) == set(TERMS)
    assert len({colour for _, colour in coloured}) == len(coloured)


def test_every_name_in_the_files_is_that_of_a_file() -> None:
    """A script that was renamed in one place only would leave an empty page."""
    named = set(re.findall(r'(?:src|href)="dashboard/([^"]+)"', ASSETS[PAGE]))
    named |= {name for text in SCRIPTS.values() for name in re.findall(r'from "\./([^"]+)"', text)}
    assert named | {PAGE} == set(ASSETS)


def test_what_scripts_import_is_exported() -> None:
    """Browsers run nothing at all where one name is missing."""
    for name, text in SCRIPTS.items():
        for names, source in re.findall(r'import \{ ([^}]+) \} from "\./([^"]+)"', text):
            exported = set(re.findall(r"^export (?:async )?(?:function|const) (\w+)", SCRIPTS[source], re.MULTILINE))
            assert set(names.split(", ")) <= exported, (name, source)


def test_every_element_that_scripts_look_for_is_in_the_page() -> None:
    """`byId` of what is not there is null, and the page stops."""
    ids = re.findall(r'id="([^"]+)"', ASSETS[PAGE])
    assert len(ids) == len(set(ids))
    for text in SCRIPTS.values():
        assert set(re.findall(r'byId\("([^"]+)"\)', text)) <= set(ids)


@pytest.mark.parametrize("name", sorted(ASSETS))
def test_nothing_comes_from_elsewhere_or_is_read_as_markup(name: str) -> None:
    """No external address, no inline script or style, no way from a text to markup or code."""
    text = ASSETS[name].replace("http://www.w3.org/2000/svg", "")  # a name, not an address
    assert not re.search(r"https?:|//[a-z]+\.[a-z]", text)
    for way in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "Function(", "DOMParser"):
        assert way not in text
    if name.endswith((".html", ".svg")):
        assert not re.search(r"<script(?![^>]*\ssrc=)|<style|\son\w+=|\sstyle=|javascript:", text)


@pytest.mark.parametrize("name", sorted(SCRIPTS))
def test_scripts_balance_their_brackets(name: str) -> None:
    """A slip of the pen shows without a browser; `-m browser` runs them for true."""
    code = re.sub(r"//[^\n]*|/\*.*?\*/", "", SCRIPTS[name], flags=re.DOTALL)
    code = re.sub(r'"(?:[^"\\\n]|\\.)*"', '""', code)
    for opening, closing in ("()", "[]", "{}"):
        assert code.count(opening) == code.count(closing), (opening, closing)
    assert code.count("`") % 2 == 0


def test_the_policy_lets_no_text_become_a_script() -> None:
    """Trusted Types forbid it to the page's own scripts, too."""
    assert "require-trusted-types-for 'script'; trusted-types 'none'" in HEADERS["content-security-policy"]
