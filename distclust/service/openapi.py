"""The OpenAPI description of the service."""

from __future__ import annotations

from typing import Any

from distclust._version import __version__
from distclust.service.requests import MOST_COMPLETIONS
from distclust.service.settings import Settings

Document = dict[str, Any]

_TEXT: Document = {"type": "string"}
_WHOLE: Document = {"type": "integer", "minimum": 0}
_NUMBER: Document = {"type": ["number", "null"]}
_FLAG: Document = {"type": "boolean"}
_ID: Document = {"type": ["string", "integer"]}

_REASONS = {
    "400": "The body is not JSON.",
    "401": "The token is missing or wrong.",
    "404": "An item is not in the corpus; the error has suggestions.",
    "408": "The body did not arrive in time.",
    "413": "The body is too large.",
    "421": "The service was called by a name that is not its own.",
    "422": "A field has another type or is out of bounds.",
    "500": "The service failed; its log has the reason.",
    "503": "Too many requests at a time; try again after Retry-After seconds.",
    "504": "There was no answer in time.",
}


def describe(settings: Settings) -> Document:
    """Return the description, with the limits of this service."""
    document: Document = {
        "openapi": "3.1.0",
        "info": {
            "title": "distclust sets",
            "version": __version__,
            "summary": "Which items belong with a few given ones (Bayesian Sets)?",
        },
        "paths": _paths(settings),
        "components": {"schemas": _schemas(settings)},
    }
    if settings.token is not None:
        document["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    return document


def _paths(settings: Settings) -> Document:
    limits = {"limit": {"type": "integer", "minimum": 1, "maximum": MOST_COMPLETIONS}}
    completing = [
        _parameter("text", {**_TEXT, "maxLength": settings.most_characters}, required=True),
        _parameter("limit", {**limits["limit"], "default": 10}, required=False),
    ]
    complete = _get("Names that begin with a text or have it inside.", "Completions", 401, 422)
    complete["parameters"] = completing
    query = _operation(
        "The items that best complete a set.",
        _json("Ranking", "The answer."),
        *(400, 401, 404, 408, 413, 422, 503, 504),
    )
    query["requestBody"] = {"required": True, "content": _content("Query")}
    _add(complete, 503, 504)
    paths = {
        "/": {"get": _operation("The page.", _plain("text/html", "HTML."))},
        "/api/complete": {"get": complete},
        "/api/info": {"get": _get("The corpus, and what may be asked.", "Info", 401)},
        "/api/query": {"post": query},
        "/healthz": {"get": _operation("Whether the process answers.", _plain())},
        "/metrics": {"get": _operation("Figures for Prometheus.", _plain(), 401)},
        "/openapi.json": {
            "get": _operation(
                "This description.",
                {
                    "description": "OpenAPI 3.1.",
                    "content": {"application/json": {"schema": {"type": "object"}}},
                },
            )
        },
        "/readyz": {"get": _operation("Whether queries would be answered.", _plain())},
    }
    not_ready = {**_plain(), "description": "Not yet."}
    paths["/readyz"]["get"]["responses"]["503"] = not_ready
    if settings.token is not None:
        for path in ("/api/complete", "/api/info", "/api/query", "/metrics"):
            for operation in paths[path].values():
                operation["security"] = [{"token": []}]
    return paths


def _schemas(settings: Settings) -> Document:
    item = {**_ID, "maxLength": settings.most_characters}
    items = {"type": "array", "items": item, "minItems": 1, "maxItems": settings.most_items}
    result_size = {"type": "integer", "minimum": 1, "maximum": settings.most_results}
    feature = {"name": _TEXT, "weight": _NUMBER}
    return {
        "Query": _object(
            {
                "items": {
                    **items,
                    "description": "Ids; whole numbers are rows where ids are text.",
                },
                "k": {**result_size, "default": 10},
                "exclude_query": {**_FLAG, "default": False},
                "explain": {**_FLAG, "default": True},
            },
            required=("items",),
        ),
        "Ranking": _object(
            {
                "query": _list(_TEXT),
                "results": _list(_ref("Result")),
                "suggested_size": {
                    **_WHOLE,
                    "description": "So many of the results more probably belong than not.",
                },
                "is_open": {**_FLAG, "description": "Whether a larger k would show more of them."},
                "engine": {"enum": ["index", "scan"]},
                "reason": _TEXT,
                "seconds": {"type": "number"},
                "features": _list(_ref("Feature")),
                "group_features": _list(_ref("Feature")),
            },
            required=(
                *("query", "results", "suggested_size", "is_open", "engine", "reason", "seconds"),
            ),
        ),
        "Result": _object(
            {
                "rank": {"type": "integer", "minimum": 1},
                "id": _ID,
                "row": _WHOLE,
                "log_score": {**_NUMBER, "description": "Log Bayes factor of belonging."},
                "features": _list(_object(feature)),
                "others": _NUMBER,
            },
            required=("rank", "id", "row", "log_score"),
        ),
        "Feature": _object(feature | {"in_query": _NUMBER, "in_corpus": _NUMBER}),
        "Completions": _object({"text": _TEXT, "items": _list(_TEXT)}),
        "Info": _object(
            {
                "title": _TEXT,
                "n_items": _WHOLE,
                "n_features": _WHOLE,
                "examples": _list(_TEXT),
                "family": _TEXT,
                "kappa": {"type": "number"},
                "smoothing": {"type": "number"},
                "has_index": _FLAG,
                "most_items": _WHOLE,
                "most_results": _WHOLE,
                "version": _TEXT,
            }
        ),
        "Error": _object({"error": _ref("Reason")}),
        "Reason": _object(
            {
                "status": _WHOLE,
                **dict.fromkeys(("message", "where", "expected", "got", "hint", "item"), _TEXT),
                "suggestions": _list(_TEXT),
            },
            required=("status", "message", "where", "expected", "got", "hint"),
        ),
    }


# ---- parts ---------------------------------------------------------------------------------------


def _object(fields: Document, required: tuple[str, ...] | None = None) -> Document:
    return {
        "type": "object",
        "properties": fields,
        "required": list(fields if required is None else required),
        "additionalProperties": False,
    }


def _list(of: Document) -> Document:
    return {"type": "array", "items": of}


def _ref(name: str) -> Document:
    return {"$ref": f"#/components/schemas/{name}"}


def _content(name: str) -> Document:
    return {"application/json": {"schema": _ref(name)}}


def _json(name: str, about: str) -> Document:
    return {"description": about, "content": _content(name)}


def _plain(kind: str = "text/plain", about: str = "Text.") -> Document:
    return {"description": about, "content": {kind: {"schema": _TEXT}}}


def _parameter(name: str, schema: Document, *, required: bool) -> Document:
    return {"name": name, "in": "query", "required": required, "schema": schema}


def _get(about: str, name: str, *statuses: int) -> Document:
    return _operation(about, _json(name, "The answer."), *statuses)


def _operation(about: str, answer: Document, *statuses: int) -> Document:
    operation = {"summary": about, "responses": {"200": answer}}
    _add(operation, *statuses, 421, 500)
    return operation


def _add(operation: Document, *statuses: int) -> None:
    """Add refusals to what an operation may answer."""
    for status in map(str, statuses):
        answer = _json("Error", _REASONS[status])
        if status == "503":
            answer["headers"] = {"Retry-After": {"schema": {"type": "integer"}}}
        operation["responses"][status] = answer
