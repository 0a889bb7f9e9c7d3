"""The app from outside: its tables, its routes, and its pages as a browser would read them."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Any

from flask import Flask
from werkzeug.routing import Rule
from werkzeug.test import TestResponse

from agentapp.config import Settings
from agentapp.isolation import new_id

SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
VOID = frozenset(
    {"area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "wbr"}
)

SCRIPTED = re.compile(r"\s*(javascript|data|vbscript):", re.I)

# A good body for every route that takes one; a route that is not here takes none.
FIELDS: dict[str, dict[str, str]] = {
    "auth.login": {"username": "ann", "password": "a long enough password", "next": "/chat"},
    "auth.setup": {"username": "opal", "password": "a long enough password"},
    "account.change_password": {
        "old_password": "a long enough password",
        "new_password": "a long enough password",
    },
    "theme": {"theme": "dark", "next": "/chat"},
    "turns.send": {"message": "hello there", "idempotency_key": "k", "after": "", "replaces": ""},
    "turns.retry": {"idempotency_key": "again"},
    "chat.rename": {"title": "another title"},
    "chat.pin": {"pinned": "1"},
}


def sql(settings: Settings, statement: str, *values: object) -> list[tuple[Any, ...]]:
    """A statement on a connection of its own, which the owner detector does not see."""
    with closing(sqlite3.connect(settings.database_url.removeprefix("sqlite:///"))) as connection:
        found = connection.execute(statement, values).fetchall()
        connection.commit()
        return found


OF_THE_HEARTBEAT = {"alerts", "audit_log", "workers", "minute_counts", "background_jobs"}


def dump(settings: Settings) -> dict[str, list[tuple[Any, ...]]]:
    """Every row of every table, but for what the heartbeat makes of them some time later: it counts turns in
    the provider's cell, puts the search's entries into their index, notes when logins were used, and tells
    operators what it has counted.
    """
    tables = sql(
        settings,
        "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'search_index%' ORDER BY name",
    )
    every = {name: sorted(sql(settings, f"SELECT * FROM {name}"), key=repr) for (name,) in tables}
    every["guardrail_cells"] = [row for row in every["guardrail_cells"] if row[0] != "provider"]
    every["logins"] = sorted(sql(settings, "SELECT digest, user_id, created_at, expires_at FROM logins"))
    return {name: rows for name, rows in every.items() if name not in OF_THE_HEARTBEAT}


def routes(app: Flask, method: str | None = None) -> list[tuple[Rule, str]]:
    """Every rule with each of its methods, or only with this one."""
    found = [(rule, each) for rule in app.url_map.iter_rules() for each in sorted(rule.methods or ())]
    return [(rule, each) for rule, each in found if method in (None, each)]


def changing(app: Flask) -> list[tuple[Rule, str]]:
    return [(rule, method) for rule, method in routes(app) if method not in SAFE]


def path_of(app: Flask, rule: Rule, **values: str) -> str:
    """The rule's path; what is not given is an id that nothing has."""
    wanted = {name: values.get(name, new_id()) for name in rule.arguments}
    if rule.endpoint == "static":
        wanted["filename"] = "style.css"
    return app.url_map.bind("localhost").build(
        rule.endpoint, wanted, rule.methods and min(rule.methods - SAFE, default="GET")
    )


def likeness(answer: TestResponse, *ids: str) -> tuple[int, list[tuple[str, str]], str]:
    """The whole answer, without what differs from request to request: tokens, its own id, the ids given."""
    ids += tuple(answer.headers.getlist("X-Request-ID"))
    headers = [(name, value) for name, value in answer.headers.items() if name != "Set-Cookie"]
    kept = "Set-Cookie" in answer.headers
    text = re.sub(r'(name="csrf[-_]token" (?:content|value))="[^"]+"', r'\1="TOKEN"', answer.text)
    for each in ids:
        text = text.replace(each, "ID")
        headers = [(name, value.replace(each, "ID")) for name, value in headers]
    return answer.status_code, [*headers, ("cookie set", str(kept))], text


@dataclass
class Element:
    tag: str
    attributes: dict[str, str]
    text: str = ""


@dataclass
class Form:
    action: str
    method: str
    fields: dict[str, str] = field(default_factory=dict)
    buttons: list[str] = field(default_factory=list)


class Page(HTMLParser):
    """A page's elements and forms. A form's fields are what a browser without scripts would send."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[Element] = []
        self.forms: list[Form] = []
        self._open: list[Element] = []
        self._form: Form | None = None
        self.feed(html)
        self.close()

    def all(self, tag: str) -> list[Element]:
        return [element for element in self.elements if element.tag == tag]

    def form(self, action: str, **having: str) -> Form:
        fits = [
            form for form in self.forms if form.action == action and having.items() <= {**form.fields}.items()
        ]
        assert fits, f"no form to {action}: {[form.action for form in self.forms]}"
        return fits[-1]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        element = Element(tag, {name: value or "" for name, value in attrs})
        assert len(element.attributes) == len(attrs), f"an attribute is there twice: {attrs}"
        self.elements.append(element)
        if tag not in VOID:
            self._open.append(element)
        self._notice_form(element)

    def handle_endtag(self, tag: str) -> None:
        while self._open and self._open.pop().tag != tag:
            pass
        if tag == "form":
            self._form = None

    def handle_data(self, data: str) -> None:
        for element in self._open:
            element.text += data
        if self._form is not None and self._open and self._open[-1].tag == "textarea":
            name = self._open[-1].attributes["name"]
            # A browser drops the first line end of a textarea.
            self._form.fields[name] = self._form.fields[name] + data

    def _notice_form(self, element: Element) -> None:
        given = element.attributes
        if element.tag == "form":
            self._form = Form(given.get("action", ""), given.get("method", "get").lower())
            self.forms.append(self._form)
        elif self._form is not None and element.tag in ("input", "textarea") and "name" in given:
            self._form.fields[given["name"]] = given.get("value", "")
        elif self._form is not None and element.tag == "button":
            self._form.buttons.append(given.get("value", ""))


def faults(html: str) -> Iterator[str]:
    """Everything about a page that the policy or the contract forbids."""
    page = Page(html)
    for element in page.elements:
        yield from _inline(element)
    if [each.attributes.get("lang") for each in page.all("html")] != ["en"]:
        yield "no lang"
    if len(page.all("h1")) != 1 or not page.all("h1")[0].text.strip():
        yield f"{len(page.all('h1'))} h1"
    if not any(title.text.strip() for title in page.all("title")):
        yield "no title"
    if not [
        m for m in page.all("meta") if m.attributes.get("name") == "csrf-token" and m.attributes["content"]
    ]:
        yield "no csrf-token meta"
    for form in page.forms:
        if form.method == "post" and not form.fields.get("csrf_token"):
            yield f"the form to {form.action} has no token"
        if form.method not in ("post", "get", "dialog") or (
            form.method != "dialog" and form.action[:1] != "/"
        ):
            yield f"the form to {form.action} goes elsewhere"
    ids = [element.attributes["id"] for element in page.elements if "id" in element.attributes]
    if len(ids) != len(set(ids)):
        yield f"an id is there twice: {ids}"


def _inline(element: Element) -> Iterator[str]:
    given = element.attributes
    if element.tag == "style" or "style" in given:
        yield f"inline style: {element}"
    if element.tag == "script" and (not given.get("src", "").startswith("/static/") or element.text.strip()):
        yield f"inline or foreign script: {element}"
    if element.tag in ("iframe", "object", "embed", "base", "img", "link") and given.get("rel") not in (
        "icon",
        "stylesheet",
    ):
        yield f"foreign content: {element}"
    for name, value in given.items():
        if name.startswith("on"):
            yield f"a handler: {element}"
        if name in ("href", "src", "action", "formaction") and re.match(
            r"\s*(javascript|data|vbscript):", value, re.I
        ):
            yield f"a script as an address: {element}"
