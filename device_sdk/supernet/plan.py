"""Paths through a supernet, and plans, which a device runs, a search returns and live update exchanges.

A plan is one value: the subnet, the exits, the split and the handling of hard samples, with the server's model named in
it. Kinds carry a tag, the plan a format number. Decoding refuses unknown kinds and fields
(``msgspec.ValidationError``): nothing is dropped silently.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from typing import Annotated, Literal, get_args

import msgspec

from device_sdk.errors import UsageError
from device_sdk.files.atomic import decode_json
from device_sdk.supernet.deciders.logistic import Logistic as Logistic
from device_sdk.supernet.deciders.port import Entropy as Entropy
from device_sdk.supernet.deciders.port import Margin as Margin
from device_sdk.supernet.deciders.port import MaxConfidence as MaxConfidence
from device_sdk.supernet.deciders.port import Thresholded
from device_sdk.supernet.deciders.router import Router as Router

HomeName = Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9-]*$(?!\n)", max_length=64)]


class Edge(msgspec.Struct, frozen=True, order=True, forbid_unknown_fields=True, omit_defaults=True):
    """One step of a subnet: a block id, the name of one of its renditions, and the input size of the subnet.

    ``input_size``: height and width of the images at cut point 0; empty for the model's own size. ``home``: the
    provider and threads that run it (``runtimes.home``); empty for the first home of the opened model. It is written
    only where it is set: SDKs that do not know it read all other plans, and refuse these.
    """

    block: str
    rendition: str = msgspec.field(default_factory=lambda: "fp32")  # of a factory: it is always written
    input_size: tuple[int, ...] = msgspec.field(default_factory=lambda: ())
    home: HomeName = ""

    def __str__(self) -> str:
        return f"{self._without_size}:{size_text(self.input_size)}" if self.input_size else self._without_size

    @property
    def _without_size(self) -> str:
        name = self.block if self.rendition == "fp32" else f"{self.block}@{self.rendition}"
        return f"{name}~{self.home}" if self.home else name

    def at(self, input_size: tuple[int, ...]) -> Edge:
        """The same block and rendition, at the same home, at another input size."""
        return Edge(self.block, self.rendition, input_size, self.home)

    def on(self, home: str) -> Edge:
        """The same at another home."""
        return Edge(self.block, self.rendition, self.input_size, home)

    @classmethod
    def parse(cls, text: str) -> Edge:
        """The edge that ``str`` writes as ``text``.

        Raises:
            ValueError: what follows the colon is not a size.
        """
        name, _, size = text.partition(":")
        name, _, home = name.partition("~")
        block, _, rendition = name.partition("@")
        return cls(block, rendition or "fp32", tuple(map(int, size.split("x"))) if size else (), home)


def without_homes(edges: Iterable[Edge]) -> tuple[Edge, ...]:
    """The same where no edge names a home: a server runs its part of a path at homes of its own."""
    return tuple(edge.on("") if edge.home else edge for edge in edges)


def size_text(size: tuple[int, ...]) -> str:
    """``(160, 160)`` as ``160x160``, height first."""
    return "x".join(map(str, size))


class Subnet(msgspec.Struct, frozen=True, order=True, forbid_unknown_fields=True):
    """A path 0 → N, written as explicit block ids. All edges have one input size."""

    edges: tuple[Edge, ...]

    def __str__(self) -> str:
        names = " ".join(edge._without_size for edge in self.edges)
        return f"{size_text(self.input_size)}: {names}" if self.input_size else names

    @property
    def block_ids(self) -> tuple[str, ...]:
        """The ids of its blocks, in order."""
        return tuple(edge.block for edge in self.edges)

    @property
    def input_size(self) -> tuple[int, ...]:
        """Height and width of its input; empty for the model's own."""
        return self.edges[0].input_size if self.edges else ()

    def at(self, input_size: tuple[int, ...]) -> Subnet:
        """The same blocks and renditions at another input size."""
        return Subnet(tuple(edge.at(input_size) for edge in self.edges))


UNREACHABLE_CONFIDENCE = math.nextafter(1.0, 2.0)  # a threshold that no confidence reaches
PLAN_FORMAT = 2  # of stored plans; those of another format are refused


class RemoteRef(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The server's model that a plan was made for: its name there, and its digest.

    An accuracy that was promised holds for this digest alone. ``model``: empty where the plan was made before a server
    was known: any connected model is meant. ``digest``: of the bundle that the model comes from; empty for a model that
    states none.
    """

    model: str = ""
    digest: str = ""

    def __str__(self) -> str:
        return self.model or "any model"

    def is_named(self, model: str) -> bool:
        """True if this reference means a server's model of this name; one without a name means any."""
        return self.model in ("", model)


ANY_SERVER = RemoteRef()

Fallback = Literal["subnet", "exit", "abstain"]
"""Answer to the samples that a split sends when its server gives none: by the rest of the plan's subnet, by the plan's
last exit, or none."""


class ExitChoice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An exit of a plan: it answers the samples whose confidence reaches ``threshold``.

    An exit whose threshold is ``UNREACHABLE_CONFIDENCE`` answers nothing by itself. Samples whose confidence lies below
    ``ask_below`` leave the path there and go to the plan's server at once; 0: none does. All others go on.
    """

    exit: str
    threshold: float
    rendition: str = "fp32"
    ask_below: float = 0.0

    @property
    def decides(self) -> bool:
        """True if samples leave the path here by their confidence."""
        return self.threshold < UNREACHABLE_CONFIDENCE or self.ask_below > 0

    def without_asking(self) -> ExitChoice:
        """The same, without samples that go to a server."""
        return msgspec.structs.replace(self, ask_below=0.0)


class Split(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The path goes on at the server from cut point ``position``.

    ``bits`` per value, for each tensor at the cut point, as sent. ``tail``: the path
    from there to the output that the server runs; it need not be that of the plan's subnet, whose own rest is the
    fallback. Position 0 sends the input: everything runs at the server. Without a tail, at position 0, the server's
    model runs as a whole, whatever it is; the input is sent as that model takes it, and ``bits`` is empty.
    With a ``fallback`` other than ``subnet``, nothing behind ``position`` ever runs on this device.
    ``per_channel``, ``compress``: coding of the packet (``offload.packing.pack``). They are written only where they are
    set: SDKs that do not know them read all other plans, and refuse these.
    """

    position: int
    bits: tuple[int, ...]
    tail: tuple[Edge, ...]
    server: RemoteRef
    fallback: Fallback = msgspec.field(default_factory=lambda: "subnet")  # of a factory: it is always written
    per_channel: bool = False
    compress: bool = False

    @property
    def is_whole(self) -> bool:
        """True if a model of the server runs as a whole, not a path of the bundle."""
        return not self.position and not self.tail


Decider = MaxConfidence | Entropy | Margin | Logistic | Router
UNFITTED: tuple[Decider, ...] = tuple(
    kind(0.0) for kind in get_args(Decider) if kind.__struct_fields__ == ("threshold",)
)


def decider_kind(decider: Thresholded) -> str:
    """Its tag in JSON."""
    return str(decider.__struct_config__.tag)


class AnswerLocally(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="answer"):
    """No sample is hard: whatever the subnet answers counts."""


class Abstain(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="abstain"):
    """Hard samples stay without an answer."""

    decider: Decider


class Ask(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="ask"):
    """Hard samples are answered by a server's model.

    ``sends``: the input, or the activations at a cut point that the subnet passes; then the server runs ``tail`` from
    there to the output.
    """

    decider: Decider
    server: RemoteRef
    sends: Literal["input"] | Annotated[int, msgspec.Meta(ge=1)] = "input"
    tail: tuple[Edge, ...] = ()


class Cascade(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="cascade"):
    """Hard samples are answered by a second path on this device (Viola and Jones 2001; Wang et al. 2022).

    ``subnet``: the second path, at an input size of its own. ``position``: the cut point from which it goes on with the
    activations of the first, both being the same up to there; 0: it begins with the input.
    """

    decider: Decider
    subnet: Subnet
    position: Annotated[int, msgspec.Meta(ge=0)] = 0


Hard = AnswerLocally | Abstain | Ask | Cascade
"""Handling of the samples that no exit answered and that the plan's decider calls hard."""


MOST_LOG_RATIO = 20.0  # of a prior: a factor of half a billion


class Prior(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The mix of classes on this device, relative to that of the training data (Saerens et al. 2002, eq. 2.4).

    ``log_ratios``: for each class the logarithm of its share here over its share there. ``temperature``: the logits
    over it are calibrated. ``temperature · log_ratios`` is added to all logits, those of exits and servers included,
    before anything decides by them; so thresholds keep their scale.

    Raises:
        ValueError: there is no class, a ratio is not finite or beyond ±20, or the temperature is not above zero.
    """

    log_ratios: tuple[float, ...]
    temperature: float = 1.0

    def __post_init__(self) -> None:
        if not self.log_ratios or not all(abs(ratio) <= MOST_LOG_RATIO for ratio in self.log_ratios):
            raise ValueError(f"a prior's log ratios must be finite and lie within ±{MOST_LOG_RATIO:g}")
        if not (math.isfinite(self.temperature) and self.temperature > 0):
            raise ValueError(f"a prior's temperature is {self.temperature:g}; it must be above zero")


class Plan(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="format", tag=PLAN_FORMAT):
    """A subnet that a device runs, the exits it may take, the split to a server, and the handling of hard samples.

    With a split, the subnet up to it runs here; its ``fallback`` answers when the server does not. ``prior``:
    of classes, applied to all logits; unset in plans without one, which are written as they were before it existed.
    """

    subnet: Subnet
    exits: tuple[ExitChoice, ...] = ()
    split: Split | None = None
    hard: Hard = AnswerLocally()
    prior: Prior | msgspec.UnsetType = msgspec.UNSET

    @property
    def class_prior(self) -> Prior | None:
        """The prior, None without one."""
        return self.prior if isinstance(self.prior, Prior) else None

    def with_prior(self, prior: Prior | None) -> Plan:
        """The same plan with this prior, or without any."""
        return msgspec.structs.replace(self, prior=msgspec.UNSET if prior is None else prior)

    @property
    def input_size(self) -> tuple[int, ...]:
        """Height and width of its input; empty for the model's own."""
        return self.subnet.input_size

    @property
    def asks_early(self) -> bool:
        """True if samples go to a server from an exit, before the end of the path."""
        return any(choice.ask_below > 0 for choice in self.exits)

    @property
    def server_models(self) -> tuple[str, ...]:
        """Names of the server's models that the plan needs, each once; none where any model will do."""
        found = [] if self.split is None else [self.split.server]
        if isinstance(self.hard, Ask):
            found.append(self.hard.server)
        return tuple(dict.fromkeys(one.model for one in found if one.model))

    @property
    def is_head(self) -> bool:
        """True if there is a split and nothing of the subnet behind it ever runs here."""
        return self.split is not None and self.split.fallback != "subnet"

    @property
    def second(self) -> Subnet | None:
        """The path of a cascade's hard samples, None without a cascade."""
        return self.hard.subnet if isinstance(self.hard, Cascade) else None

    @property
    def hard_threshold(self) -> float | None:
        """The threshold of the decider of hard samples; None where none is hard."""
        return None if isinstance(self.hard, AnswerLocally) else self.hard.decider.threshold

    def with_exits_of(self, held: Collection[str]) -> Plan:
        """The same plan without the exits that are not ``held``."""
        return msgspec.structs.replace(self, exits=tuple(choice for choice in self.exits if choice.exit in held))

    @property
    def kind(self) -> str:
        """A short label for logs and lists: ``subnet``, ``exits``, ``exits + ask early`` …"""
        words = ["exits"] if self.exits else []
        words += ["split" if self.split.position else "remote"] if self.split is not None else []
        if not isinstance(self.hard, AnswerLocally):
            asks = "ask early" if self.asks_early else "ask"
            named = {Abstain: "abstain", Ask: asks, Cascade: "cascade"}
            words.append(named[type(self.hard)])
        return " + ".join(words) or "subnet"


_NEWER = "it was written by another version of Pathweave: adapt again, or take the SDK that wrote it"


def encode_plan(plan: Plan) -> bytes:
    """``plan`` as JSON in UTF-8, every field written out."""
    return msgspec.json.encode(plan)


def decode_plan(data: bytes) -> Plan:
    """The plan that ``data`` holds. Whether a bundle has such a plan, ``Supernet.check_plan`` says.

    Raises:
        UsageError: not JSON, not a plan, of another format, or of an unknown kind.
    """
    try:
        found = decode_json(data, dict[str, object])
        if found.get("format") != PLAN_FORMAT:
            said = f"format {found['format']}" if "format" in found else "the first format"
            raise UsageError(f"this is a plan of {said}, not of format {PLAN_FORMAT}", hint=_NEWER)
        return decode_json(data, Plan)
    except ValueError as error:
        raise UsageError(f"this is no plan: {error}", hint=_NEWER) from error
