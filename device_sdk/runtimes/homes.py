"""Several homes of one runtime: each part of a stretch runs where its plan says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from device_sdk.errors import RuntimeFailedError
from device_sdk.fragments.composition import Stretch
from device_sdk.runtimes.port import Array, LoadedStretch, Runtime, StopSignal
from device_sdk.runtimes.providers import provider_version
from device_sdk.supernet.home import PROVIDERS, Home


class HomesRuntime:
    """Runs each stretch at its home, and stretches with parts one after the other: a session per run of equal home.

    ``runtimes``: by home, the first of which runs what names no home, or the first that its renditions are for.
    ``engine``: name, version and settings that all of them share.
    """

    def __init__(self, runtimes: Mapping[Home, Runtime], engine: str) -> None:
        self._runtimes = {str(home): (home, runtime) for home, runtime in runtimes.items()}
        self._engine = engine

    @property
    def homes(self) -> tuple[str, ...]:
        """The names of the homes, the first one first."""
        return tuple(self._runtimes)

    @property
    def identity(self) -> str:
        """For example ``onnxruntime-1.31.1[cpu-1t,cpu-2t,openvino-2t=1.8.1]``: the homes, with versions of plug-ins."""
        versions = {name: provider_version(home.provider) for name, (home, _) in self._runtimes.items()}
        return f"{self._engine}[{','.join(f'{one}={own}' if own else one for one, own in versions.items())}]"

    @property
    def concurrency(self) -> int:
        """See the port: that of the home with the fewest."""
        return min(runtime.concurrency for _, runtime in self._runtimes.values())

    @property
    def waits_for_threads(self) -> bool:
        """See the port: of what names no home."""
        _, first = next(iter(self._runtimes.values()))
        return first.waits_for_threads

    def taking_turns(self) -> HomesRuntime:
        """See the port."""
        turns = {home: runtime.taking_turns() for home, runtime in self._runtimes.values()}
        return HomesRuntime(turns, self._engine)

    def load(self, stretch: Stretch) -> LoadedStretch:
        """See the port.

        Raises:
            RuntimeFailedError: also if the home is not open, or its provider runs no node of a part.
        """
        if not stretch.parts:
            return self._load_part(stretch)
        loaded: list[LoadedStretch] = []
        try:
            for part in stretch.parts:
                loaded.append(self._load_part(part))
        except BaseException:
            for one in loaded:
                one.close()
            raise
        return ChainedStretch(loaded)

    def _load_part(self, stretch: Stretch) -> LoadedStretch:
        home, runtime = self._at(stretch)
        loaded = runtime.load(replace(stretch, home=""))
        if not home.on_processor and getattr(loaded, "nodes_by_provider", None) and not getattr(loaded, "assigned", 1):
            loaded.close()
            raise RuntimeFailedError(
                f"{home} runs no node of {' '.join(stretch.owners) or 'the model'}: the processor would run them all",
                hint="profile again, so that the plan is chosen by what runs where",
            )
        return loaded

    def _at(self, stretch: Stretch) -> tuple[Home, Runtime]:
        if stretch.home:
            if stretch.home not in self._runtimes:
                open_ones = ", ".join(self._runtimes)
                raise RuntimeFailedError(
                    f"the plan runs blocks at {stretch.home}, which is not open here",
                    hint=f"open the bundle with homes= that include it; open: {open_ones}",
                )
            return self._runtimes[stretch.home]
        for home, runtime in self._runtimes.values():
            if not stretch.providers or PROVIDERS[home.provider] in stretch.providers:
                return home, runtime
        raise RuntimeFailedError(f"no home here runs blocks for {' or '.join(stretch.providers)}")


class ChainedStretch:
    """Stretches that run one after the other, the outputs of one being the inputs of the next. Implements the port."""

    def __init__(self, stretches: Sequence[LoadedStretch]) -> None:
        self._stretches = tuple(stretches)

    def run(self, inputs: Sequence[Array]) -> list[Array]:
        """See the port."""
        live = list(inputs)
        for stretch in self._stretches:
            live = stretch.run(live)
        return live

    def run_until(self, inputs: Sequence[Array], stop: StopSignal) -> list[Array] | None:
        """See the port."""
        live: list[Array] | None = list(inputs)
        for stretch in self._stretches:
            if live is None or stop.is_set:
                return None
            live = stretch.run_until(live, stop)
        return live

    def close(self) -> None:
        """See the port."""
        for stretch in self._stretches:
            stretch.close()
