"""What clients send, read with bounds and checked before any work."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from starlette.datastructures import Headers, QueryParams
from starlette.types import Receive

from distclust.errors import InputError
from distclust.service.refusals import Refusal, refusal
from distclust.service.settings import Settings

QUERY = "POST /api/query"
COMPLETE = "GET /api/complete"
MOST_COMPLETIONS = 50

_CLOSE = {"Connection": "close"}
_READ_ANYWAY = 16  # bodies: what is sent in vain up to so many is read, or the answer is lost
_SHOWN = 60
_FIELDS = {"items": None, "k": 10, "exclude_query": False, "explain": True}


class Gone(Exception):
    """The client has left before it had sent its request."""


@dataclass(frozen=True)
class Query:
    """A checked query."""

    items: tuple[str | int, ...]
    k: int
    exclude_query: bool
    explain: bool


@dataclass(frozen=True)
class Completion:
    """A checked request for completions."""

    text: str
    limit: int


# ---- bodies --------------------------------------------------------------------------------------


async def read_body(headers: Headers, receive: Receive, settings: Settings) -> bytes:
    """Return the body of a request; refuse one that is too large or comes too slowly."""
    most = settings.body_bytes
    declared = headers.get("content-length", "0")
    size = int(declared) if declared.isdecimal() else 0
    if size > _READ_ANYWAY * most or (size > most and "expect" in headers):
        raise _too_large(most)
    body = bytearray()
    n_read = 0
    try:
        async with asyncio.timeout(settings.patience):
            async for chunk in _chunks(receive):
                n_read += len(chunk)
                if n_read > _READ_ANYWAY * most:
                    raise _too_large(most)
                if n_read <= most:
                    body += chunk
    except TimeoutError:
        expected = f"the whole body within {settings.patience:g} seconds"
        got = f"{n_read:,} bytes of it"
        raise refusal(408, QUERY, expected, got, "Send it at once.", _CLOSE) from None
    if n_read > most:
        raise _too_large(most)
    return bytes(body)


async def _chunks(receive: Receive) -> Any:
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Gone
        yield message.get("body", b"")
        if not message.get("more_body", False):
            return


def _too_large(most: int) -> Refusal:
    expected = f"a body of at most {most:,} bytes"
    return refusal(413, QUERY, expected, "a larger one", "Ask with fewer items.", _CLOSE)


# ---- fields --------------------------------------------------------------------------------------


def read_query(body: bytes, settings: Settings) -> Query:
    """Return the query in a body.

    Raises
    ------
    Refusal
        If the body is not JSON (400).
    InputError
        If its fields are of other types or out of bounds.
    """
    fields = _parse(body)
    if not isinstance(fields, dict):
        hint = 'For example {"items": ["first", "second"], "k": 10}.'
        raise InputError(QUERY, "a JSON object", _kind(fields), hint)
    unknown = sorted(set(fields) - set(_FIELDS))
    if unknown:
        hint = "Check the spelling."
        raise InputError(QUERY, f"only {', '.join(_FIELDS)}", _shown(unknown[0]), hint)
    given = _FIELDS | fields
    return Query(
        _read_items(given["items"], settings),
        _read_k(given["k"], settings.most_results),
        _read_flag(given, "exclude_query"),
        _read_flag(given, "explain"),
    )


def read_completion(given: QueryParams, settings: Settings) -> Completion:
    """Return what is to be completed."""
    text = given.get("text")
    if text is None:
        raise InputError(f"{COMPLETE}: text", "the beginning of a name", "nothing", "Add ?text=.")
    _check_text(text, f"{COMPLETE}: text", settings)
    limit = given.get("limit", "10")
    if not (limit.isascii() and limit.isdecimal() and 1 <= int(limit[:9]) <= MOST_COMPLETIONS):
        expected = f"a whole number from 1 to {MOST_COMPLETIONS}"
        raise InputError(f"{COMPLETE}: limit", expected, _shown(limit), "Try 10.")
    return Completion(text, int(limit))


def _parse(body: bytes) -> Any:
    try:
        return json.loads(body, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        reason = str(error) if isinstance(error, json.JSONDecodeError) else "something else"
        hint = 'For example {"items": ["first", "second"]}.'
        raise refusal(400, QUERY, "JSON", reason, hint) from None


def _no_constant(name: str) -> Any:
    raise ValueError(name)


def _read_items(items: Any, settings: Settings) -> tuple[str | int, ...]:
    where = f"{QUERY}: items"
    if not isinstance(items, list):
        raise InputError(where, "a list of ids", _kind(items), 'For example ["first", "second"].')
    if not 1 <= len(items) <= settings.most_items:
        expected = f"1 to {settings.most_items:,} items"
        raise InputError(where, expected, f"{len(items):,}", "Name a few that belong together.")
    for item in items:
        if isinstance(item, bool) or not isinstance(item, str | int):
            hint = "Ids are text; whole numbers are ids, or rows where ids are text."
            raise InputError(where, "ids", _kind(item), hint)
        if isinstance(item, str):
            _check_text(item, where, settings)
        elif abs(item) >= 2**63:
            raise InputError(where, "whole numbers of 64 bits", "a larger one", "Check it.")
    return tuple(items)


def _check_text(text: str, where: str, settings: Settings) -> None:
    if len(text) > settings.most_characters:
        expected = f"at most {settings.most_characters:,} characters"
        raise InputError(where, expected, f"{len(text):,}", "Shorten the name.")
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise InputError(where, "text", "half of a character (a surrogate)", "Send it whole.")


def _read_k(k: Any, most: int) -> int:
    if isinstance(k, bool) or not isinstance(k, int) or not 1 <= k <= most:
        expected = f"a whole number from 1 to {most:,}"
        raise InputError(f"{QUERY}: k", expected, _shown(k), "Try 10.")
    return k


def _read_flag(given: Mapping[str, Any], name: str) -> bool:
    value = given[name]
    if not isinstance(value, bool):
        raise InputError(f"{QUERY}: {name}", "true or false", _kind(value), "Leave it out.")
    return value


def _kind(value: Any) -> str:
    """Name the JSON type of a value."""
    names = {dict: "an object", list: "a list", str: "text", bool: "true or false"}
    return names.get(type(value), "nothing" if value is None else "a number")


def _shown(value: Any) -> str:
    shown = repr(value) if isinstance(value, str | int | float) else _kind(value)
    return shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}..."
