"""Runs paths and exits of an exported supernet on batches; common prefixes run once, with bounded memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from device_sdk.runtimes import Array, LoadedStretch, OnnxRuntime
from device_sdk.supernet.plan import Subnet
from packager.exporting.export import ExportedBlocks


class PathRuns:
    """Runs subnets and exits of ``exported`` block by block, in sessions that keep no memory between runs.

    ``ran`` is called after every block with its MACs for the whole batch. ``close`` frees the sessions.
    """

    def __init__(self, exported: ExportedBlocks, *, threads: int, ran: Callable[[float], None]) -> None:
        self._exported = exported
        self._runtime = OnnxRuntime(threads=threads, lean=True)
        self._ran = ran
        self._sessions: dict[str, LoadedStretch] = {}
        expansion = exported.expansion
        self._macs = {block.id: block.macs for block in expansion.blocks}
        self._macs |= {exit_.id: exit_.macs for exit_ in expansion.exits}
        self._exits: dict[int, list[str]] = {}
        for exit_ in expansion.exits:
            self._exits.setdefault(exit_.position, []).append(exit_.id)
        self._original = tuple(block.id for block in expansion.originals)
        self._with_exits = False

    def macs(self, subnets: Sequence[Subnet]) -> float:
        """MACs of ``answers`` per sample."""
        prefixes = {subnet.block_ids[: k + 1] for subnet in subnets for k in range(len(subnet.block_ids))}
        exits = [name for names in self._exits.values() for name in names]
        with_exits = any(subnet.block_ids == self._original for subnet in subnets)
        return float(
            sum(self._macs[part[-1]] for part in prefixes) + sum(self._macs[part] for part in exits) * with_exits
        )

    def open(self, subnets: Sequence[Subnet]) -> Iterator[str]:
        """Load the blocks of ``subnets`` one by one. Otherwise they are loaded when they first run."""
        for block in dict.fromkeys(block for subnet in subnets for block in subnet.block_ids):
            yield block
            self._session(block)

    def answers(self, subnets: Sequence[Subnet], inputs: Array) -> Iterator[tuple[Subnet | str, Array]]:
        """The answer [batch, …] of each subnet, and of each exit, by id, if the original path is among them.

        ``inputs``: prepared [batch, *input]. The prefix tree of the subnets is traversed depth first.
        """
        self._with_exits = any(subnet.block_ids == self._original for subnet in subnets)
        yield from self._walk([inputs], list(subnets), 0)

    def close(self) -> None:
        """Free the sessions. Idempotent."""
        while self._sessions:
            self._sessions.popitem()[1].close()

    def _walk(self, features: list[Array], subnets: list[Subnet], depth: int) -> Iterator[tuple[Subnet | str, Array]]:
        while True:
            if self._with_exits and subnets[0].block_ids[:depth] == self._original[:depth]:
                for name in self._exits.get(depth, ()):
                    yield name, self._run(name, features)[-1]
            following: dict[str, list[Subnet]] = {}
            for subnet in subnets:
                if len(subnet.block_ids) == depth:
                    yield subnet, features[-1]
                else:
                    following.setdefault(subnet.block_ids[depth], []).append(subnet)
            if not following:
                return
            *others, last = following
            for name in others:
                yield from self._walk(self._run(name, features), following[name], depth + 1)
            features, subnets, depth = self._run(last, features), following[last], depth + 1

    def _run(self, part: str, features: list[Array]) -> list[Array]:
        found = self._session(part).run(features)
        self._ran(self._macs[part] * len(features[0]))
        return found

    def _session(self, part: str) -> LoadedStretch:
        if part not in self._sessions:
            is_exit = any(part in names for names in self._exits.values())
            stretch = self._exported.stretch([], part) if is_exit else self._exported.stretch([part])
            self._sessions[part] = self._runtime.load(stretch)
        return self._sessions[part]
