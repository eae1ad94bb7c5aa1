"""State of a bundle that outlasts a process: its passed self-test, its profiles, the plan in use."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import secrets
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TypeVar

import msgspec

from device_sdk.bundles.bundle import Bundle
from device_sdk.errors import BudgetError, UsageError
from device_sdk.execution.guarded_self_test import DEVICE_LIMITS
from device_sdk.execution.home_check import HomeReport
from device_sdk.files.atomic import decode_json, remove_temporaries, write_atomically
from device_sdk.files.locks import exclusive
from device_sdk.live.plan_pool import POOL_FORMAT, PlanPool
from device_sdk.policies.planning.front import FRONT_FORMAT, PlanFront
from device_sdk.profiling.profile import FORMAT, Profile
from device_sdk.profiling.sustained import SUSTAINED_FORMAT, SustainedProfile
from device_sdk.profiling.timing import Conditions, current_conditions, device_identity, driver
from device_sdk.runtimes.port import Runtime
from device_sdk.supernet.blocks import IDENTIFIER
from device_sdk.supernet.home import Home
from device_sdk.supernet.plan import PLAN_FORMAT, Edge, Plan, decode_plan, encode_plan

_log = logging.getLogger(__name__)

Stored = TypeVar("Stored")


def default_state_folder() -> Path:
    """``$PATHWEAVE_STATE``, else ``pathweave`` in the user's folder for state (XDG base directories)."""
    own = os.environ.get("PATHWEAVE_STATE")
    if own:
        return Path(own)
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "pathweave"


def bundle_folder(state_folder: Path, bundle: Bundle) -> Path:
    """Folder of everything about one bundle."""
    return _bundle_folder(state_folder, bundle.manifest.name, bundle.digest)


class StoredPart(msgspec.Struct, frozen=True):
    """Part of a bundle that a device keeps: ``exits``, None for all, and what ``plan`` needs, None for all blocks."""

    exits: tuple[str, ...] | None = None
    plan: Plan | None = None


def load_part(state_folder: Path, name: str, digest: str) -> StoredPart | None:
    """The part of a bundle that this device keeps, if that was ever decided; otherwise None."""
    folder = _bundle_folder(state_folder, name, digest)
    for file in (_PART, _EXITS):
        try:
            return decode_json((folder / file).read_bytes(), StoredPart)
        except FileNotFoundError:
            continue
        except (OSError, ValueError) as error:
            _log.warning("%s is damaged: %s", folder / file, error)
    return None


def save_part(state_folder: Path, bundle: Bundle, part: StoredPart) -> None:
    """Keep which part of ``bundle`` this device holds.

    Raises:
        StorageError: the folder cannot be written.
    """
    write_atomically(bundle_folder(state_folder, bundle) / _PART, msgspec.json.encode(part) + b"\n")


_PART = "part.json"
_EXITS = "exits.json"  # of earlier versions, which kept exits alone


def _bundle_folder(state_folder: Path, name: str, digest: str) -> Path:
    return state_folder / f"{name}-{digest[:16]}"


def log_path(state_folder: Path, bundle: Bundle) -> Path:
    """File of a bundle's adaptation events, one for all runtimes."""
    return bundle_folder(state_folder, bundle) / "adaptation.jsonl"


def device_id(state_folder: Path) -> str:
    """A random name, made once per state folder: an identifier without information about the device.

    Raises:
        StorageError: the folder cannot be written.
    """
    path = state_folder / "device"
    for _ in range(2):
        with contextlib.suppress(OSError):
            known = path.read_text(encoding="utf-8").strip()
            if IDENTIFIER.fullmatch(known):
                return known
        remove_temporaries(state_folder)  # of a run that was killed here
        write_atomically(path, f"{secrets.token_hex(8)}\n".encode())
    return path.read_text(encoding="utf-8").strip()


class _StoredPlan(msgspec.Struct, frozen=True):
    """A plan as ``plan_json`` writes it, and the runtime that it was chosen for, with its threads."""

    plan: msgspec.Raw
    runtime: str = "another runtime"


class SelfTestAttempts(msgspec.Struct, frozen=True):
    """Attempts at the self-test that did not pass, and the reason of the last one."""

    strikes: int = 0
    failure: str = ""


class _PassedSelfTest(msgspec.Struct, frozen=True, omit_defaults=True):
    """The exits and the renditions of blocks that were tested; None: all."""

    exits: tuple[str, ...] | None = None
    edges: tuple[Edge, ...] | None = None


_ATTEMPTS = "self-test-attempts"
_SELF_TEST_S = DEVICE_LIMITS.total_s
# files of other formats are left as they are
_PLAN, _POOL, _FRONT = f"plan-{PLAN_FORMAT}", f"pool-{POOL_FORMAT}", f"front-{PLAN_FORMAT}-{FRONT_FORMAT}"


class DeviceState:
    """One folder per bundle, named by its digest; each thing in it is one atomic file.

    What cannot be read counts as not there: everything here can be measured or found again.
    """

    def __init__(
        self,
        folder: Path,
        bundle: Bundle,
        runtime: Runtime,
        *,
        system: Path = Path("/"),
        memory_cap_bytes: int | None = None,
    ) -> None:
        self.folder = bundle_folder(folder, bundle)
        self.memory_cap_bytes = memory_cap_bytes  # under which profiles are measured; may change
        self._bundle = bundle
        self._runtime = runtime
        self._system = system  # below which the system shows its power mode
        key = f"{device_identity()}|{runtime.identity}"
        self._key = hashlib.sha256(key.encode()).hexdigest()[:16]

    def remove_temporaries(self) -> None:
        """Delete what killed processes left half written."""
        remove_temporaries(self.folder)

    def follow(self, bundle: Bundle) -> None:
        """From now on the same bundle holds other exits."""
        self._bundle = bundle

    def self_test_passed(self) -> bool:
        """True if every held block passed its self-test with this runtime on this device."""
        passed = self._load("self-test", _PassedSelfTest)
        if passed is None or self.untested_exits(self._bundle):
            return False
        if passed.edges is None:
            return True
        held = self._bundle.part.edges
        return held is not None and held <= set(passed.edges)

    def untested_exits(self, bundle: Bundle) -> tuple[str, ...]:
        """The exits that ``bundle`` holds and that were not tested with this runtime on this device."""
        passed = self._load("self-test", _PassedSelfTest)
        if passed is None:
            return bundle.exits
        return () if passed.exits is None else tuple(one for one in bundle.exits if one not in passed.exits)

    def remember_self_test(self) -> None:
        """All that the bundle holds now passed its self-test, now or before."""
        passed = self._load("self-test", _PassedSelfTest)
        before = passed.exits or () if passed is not None else ()
        everything = self._bundle.exits == tuple(one.id for one in self._bundle.offered.exits)
        exits = None if everything else tuple(dict.fromkeys((*before, *self._bundle.exits)))
        edges: tuple[Edge, ...] | None = None
        held = self._bundle.part.edges
        if held is not None and (passed is None or passed.edges is not None):
            edges = tuple(sorted(held.union(() if passed is None or passed.edges is None else passed.edges)))
        self._save("self-test", _PassedSelfTest(exits, edges))

    def self_testing(self) -> AbstractContextManager[None]:
        """Held alone while the bundle is tested with this runtime on this device.

        Raises:
            StorageError: another holder had it for as long as the slowest test takes, or it cannot be written.
        """
        return exclusive(self.folder / f"self-test-{self._key}.lock", wait_s=_SELF_TEST_S)

    def load_attempts(self) -> SelfTestAttempts:
        """The attempts at the self-test with this runtime on this device."""
        return self._load(_ATTEMPTS, SelfTestAttempts) or SelfTestAttempts()

    def save_attempts(self, attempts: SelfTestAttempts) -> None:
        """Keep the attempts."""
        self._save(_ATTEMPTS, attempts)

    def load_home(self, home: Home, version: str) -> HomeReport | None:
        """The report of ``home`` with this ``version`` of its runtime under the driver that is installed now."""
        return self._load(self._home(home, version), HomeReport)

    def save_home(self, report: HomeReport, home: Home, version: str) -> None:
        """Keep the report of a home."""
        self._save(self._home(home, version), report)

    def _home(self, home: Home, version: str) -> str:
        key = f"{home}|{version}|{driver(self._system)}"
        return f"home-{hashlib.sha256(key.encode()).hexdigest()[:8]}"

    def load_profile(self, *, batch: int = 1) -> Profile | None:
        """The profile for this bundle, runtime, batch size and cap under the conditions that hold now, if any."""
        now = current_conditions(self._system)
        cap_bytes = self.memory_cap_bytes
        profile = self._load(_profile_name(now, batch, cap_bytes), Profile)
        valid = profile is not None and profile.valid_for(
            self._bundle, self._runtime, batch=batch, conditions=now, memory_cap_bytes=cap_bytes
        )
        return profile if valid else None

    def save_profile(self, profile: Profile) -> None:
        """Keep a profile, beside those for other conditions and batch sizes."""
        self._save(_profile_name(profile.conditions, profile.batch, profile.memory_cap_bytes), profile)

    def load_sustained(self) -> SustainedProfile | None:
        """The last sustained profile for this bundle and runtime under the conditions that hold now, if any."""
        return self._load(_sustained_name(current_conditions(self._system)), SustainedProfile)

    def save_sustained(self, profile: SustainedProfile) -> None:
        """Keep a sustained profile that was measured under the conditions that hold now, beside those for others."""
        self._save(_sustained_name(current_conditions(self._system)), profile)

    def load_plan(self) -> Plan | None:
        """The plan that was in use last, if there is one, it fits this bundle's graph, and its blocks are here.

        One of an earlier format is not read, and stays where it is: the log of the process says so.
        """
        stored = self._load(_PLAN, _StoredPlan)
        if stored is None:
            if self._path("plan").exists():
                _log.warning("the plan kept here is of an earlier format and is not used: adapt again")
            return None
        try:
            plan = decode_plan(stored.plan)
            self._bundle.supernet.check_plan(plan)
        except UsageError as error:
            _log.warning("the plan kept here is not used: %s", error)
            return None
        if not self._bundle.has_all_of(plan):
            _log.warning("the plan kept here is not used: it needs blocks or exits that are not here")
            return None
        return plan

    def save_plan(self, plan: Plan) -> None:
        """Keep the plan in use."""
        self._save(_PLAN, _StoredPlan(msgspec.Raw(encode_plan(plan)), self._runtime.identity))

    def runtimes_with_plans(self) -> tuple[str, ...]:
        """The other runtimes, or numbers of threads, for which a plan of this bundle is kept; sorted."""
        found = set()
        for path in self.folder.glob(f"{_PLAN}-*.json"):
            with contextlib.suppress(OSError, ValueError):
                if path != self._path(_PLAN):
                    found.add(decode_json(path.read_bytes(), _StoredPlan).runtime)
        return tuple(sorted(found))

    def load_pool(self) -> PlanPool | None:
        """The plan pool that the last adaptation left, if there is one; without what this bundle does not have."""
        try:
            pool = self._load(_POOL, PlanPool)
        except BudgetError:
            return None
        return None if pool is None else pool.known_to(self._bundle.supernet)

    def save_pool(self, pool: PlanPool) -> None:
        """Keep a plan pool."""
        self._save(_POOL, pool)

    def load_front(self) -> PlanFront | None:
        """The plans for other networks that the last planning left, without those that this bundle does not have."""
        try:
            front = self._load(_FRONT, PlanFront)
        except (BudgetError, UsageError):  # a requirement, an uplink or a power that makes no sense
            return None
        return None if front is None else front.known_to(self._bundle.supernet)

    def save_front(self, front: PlanFront) -> None:
        """Keep the plans for other networks."""
        self._save(_FRONT, front)

    def _path(self, what: str) -> Path:
        return self.folder / f"{what}-{self._key}.json"

    def _save(self, what: str, value: object) -> None:
        write_atomically(self._path(what), msgspec.json.encode(value) + b"\n")

    def _load(self, what: str, kind: type[Stored]) -> Stored | None:
        try:
            return decode_json(self._path(what).read_bytes(), kind)
        except (OSError, ValueError):
            return None


def _sustained_name(conditions: Conditions) -> str:
    key = f"{SUSTAINED_FORMAT}|{conditions.power_mode}|{conditions.driver}"
    return f"sustained-{hashlib.sha256(key.encode()).hexdigest()[:8]}"


def _profile_name(conditions: Conditions, batch: int, cap_bytes: int | None) -> str:
    key = f"{FORMAT}|{batch}|{conditions.power_mode}|{conditions.driver}"
    if cap_bytes is not None:
        key += f"|{cap_bytes}"
    return f"profile-{hashlib.sha256(key.encode()).hexdigest()[:8]}"
