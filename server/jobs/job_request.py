"""Validation of packaging requests. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from typing import Annotated

import msgspec

from device_sdk.files.atomic import decode_json
from device_sdk.supernet.blocks import IDENTIFIER
from server.errors import ForbiddenError, MalformedError, UnprocessableError

MAX_BYTES = 65_536

# Fields of the packager's recipe that a request may set: numbers, switches, and words from fixed lists. Not among them:
# ``branch_weights``, which names a file, ``cache_mb``, which is the operator's disk, and fields that are lists.
RECIPE_FIELDS = frozenset(
    {
        *("gamma", "max_span", "tiled", "shrink_rates", "identity", "identity_points", "exit_positions"),
        *("steps", "budget_minutes", "distil_share", "exit_share"),
        *("batch", "branches", "distil_rate", "tune_rate", "exit_rate", "temperature", "label_weight"),
        *("sampling", "distil_from", "recalibrate_batches", "patience", "variants", "flip", "crop", "seed"),
        *("device", "precision", "checkpoint_seconds", "input_sizes", "bottlenecks", "joint_exits"),
    }
)

SCHEMES = ("zoo", "torchvision", "timm")
# No / and no second colon: timm would load from hf-hub:… and local-dir:….
_MODEL_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")

Field = Annotated[str, msgspec.Meta(pattern=r"^[a-z][a-z0-9_]{0,63}\Z")]
Scalar = (
    bool
    | Annotated[int, msgspec.Meta(ge=-(2**53), le=2**53)]
    | float
    | Annotated[str, msgspec.Meta(pattern=r"^[ -~]*\Z", max_length=200)]
)

MOST_PRIORITY = 100
TAG_PATTERN = r"^[a-z0-9][a-z0-9._-]{0,31}\Z"
Tag = Annotated[str, msgspec.Meta(pattern=TAG_PATTERN)]


class JobRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A client's packaging request.

    ``data``, ``validation``: names of data sets on the server. ``recipe``: fields of the packager's recipe, those in
    RECIPE_FIELDS, with plain values, which the packager validates. ``priority``: higher ones run first, for those who
    may; ``needs``: tags of the machine that runs it.
    """

    name: str
    model: str
    data: str
    validation: str
    recipe: dict[Field, Scalar] = msgspec.field(default_factory=dict)
    priority: Annotated[int, msgspec.Meta(ge=-MOST_PRIORITY, le=MOST_PRIORITY)] = 0
    needs: Annotated[tuple[Tag, ...], msgspec.Meta(max_length=8)] = ()


def read_request(data: bytes) -> JobRequest:
    """The request in a JSON body (MalformedError if it is invalid)."""
    try:
        return decode_json(data, JobRequest)
    except ValueError as error:
        raise MalformedError(f"the job is invalid: {error}") from error


def check_request(request: JobRequest, *, known_data: Collection[str], may_hurry: bool = False) -> None:
    """Check that a request only refers to models and data of the server, and runs no code of the client.

    ``may_hurry``: the client may raise the priority.

    Raises:
        UnprocessableError: an invalid bundle name, a model of another kind, unknown data, or a recipe field that is not
            in RECIPE_FIELDS. ForbiddenError: a priority above 0.
    """
    if request.priority > 0 and not may_hurry:
        raise ForbiddenError("only an operator may raise the priority of a job", hint="leave it out")
    check_name(request.name)
    _check_model(request.model)
    for reference in (request.data, request.validation):
        if reference not in known_data:
            raise UnprocessableError(
                f"the server has no data {reference[:80]!r}", hint="it has " + ", ".join(sorted(known_data))
            )
    others = sorted(request.recipe.keys() - RECIPE_FIELDS)
    if others:
        raise UnprocessableError(
            f"a request cannot set the recipe's {others[0]}", hint="it can set " + ", ".join(sorted(RECIPE_FIELDS))
        )


def check_name(name: str) -> None:
    """Check the name of a bundle (UnprocessableError if it is invalid)."""
    if not IDENTIFIER.fullmatch(name):
        raise UnprocessableError(
            f"{name[:80]!r} cannot be the name of a bundle",
            hint="up to 128 letters, digits, _ . and -, a letter or digit first",
        )


def recipe_toml(recipe: Mapping[str, bool | int | float | str]) -> str:
    """The recipe as the TOML file that the packager reads."""
    return "".join(f"{field} = {_toml(value)}\n" for field, value in recipe.items())


def _check_model(model: str) -> None:
    scheme, _, name = model.partition(":")
    if scheme not in SCHEMES:
        raise UnprocessableError(
            f"the server does not package the model {model[:80]!r}: requests cannot contain code or file names",
            hint="write zoo:NAME, torchvision:NAME or timm:NAME, and send weights along",
        )
    if not _MODEL_NAME.fullmatch(name):
        raise UnprocessableError(f"{name[:80]!r} cannot be the name of a {scheme} model")


def _toml(value: bool | int | float | str) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return json.dumps(value) if isinstance(value, str) else repr(value)
