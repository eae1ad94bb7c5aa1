"""What a device remembers of a bundle between runs: that it passed the self-test, its profiles, the plan in use."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import secrets
from pathlib import Path
from typing import TypeVar

import msgspec

from device_sdk.bundles.bundle import Bundle
from device_sdk.bundles.manifest import IDENTIFIER
from device_sdk.errors import BudgetError, UsageError
from device_sdk.files.atomic import remove_temporaries, write_atomically
from device_sdk.files.untrusted_json import decode_json
from device_sdk.live.plan_pool import POOL_FORMAT, PlanPool
from device_sdk.profiling.conditions import Conditions, current_conditions, device_identity
from device_sdk.profiling.profile import FORMAT, Profile
from device_sdk.runtimes.port import Runtime
from device_sdk.supernet.plan import PLAN_FORMAT, Plan
from device_sdk.supernet.plan_json import decode_plan, encode_plan

_log = logging.getLogger(__name__)

Stored = TypeVar("Stored")


def default_state_folder() -> Path:
    """``$PATHWEAVE_STATE``, else ``pathweave`` in the user's folder for state (XDG base directories)."""
    own = os.environ.get("PATHWEAVE_STATE")
    if own:
        return Path(own)
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "pathweave"


def bundle_folder(state_folder: Path, bundle: Bundle) -> Path:
    """Where everything about one bundle lies."""
    return state_folder / f"{bundle.manifest.name}-{bundle.digest[:16]}"


def log_path(state_folder: Path, bundle: Bundle) -> Path:
    """Where the adaptation events of a bundle go, whatever it runs on."""
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


_ATTEMPTS = "self-test-attempts"
_PLAN, _POOL = f"plan-{PLAN_FORMAT}", f"pool-{POOL_FORMAT}"  # files of other formats are left as they are


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

    def self_test_passed(self) -> bool:
        """Whether the bundle passed its self-test with this runtime on this device."""
        return self._path("self-test").exists()

    def remember_self_test(self) -> None:
        """The bundle passed its self-test."""
        write_atomically(self._path("self-test"), b"{}\n")

    def load_attempts(self) -> SelfTestAttempts:
        """The attempts at the self-test with this runtime on this device."""
        return self._load(_ATTEMPTS, SelfTestAttempts) or SelfTestAttempts()

    def save_attempts(self, attempts: SelfTestAttempts) -> None:
        """Keep the attempts."""
        self._save(_ATTEMPTS, attempts)

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

    def load_plan(self) -> Plan | None:
        """The plan that was in use last, if there is one and it fits this bundle's graph.

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

    def _path(self, what: str) -> Path:
        return self.folder / f"{what}-{self._key}.json"

    def _save(self, what: str, value: object) -> None:
        write_atomically(self._path(what), msgspec.json.encode(value) + b"\n")

    def _load(self, what: str, kind: type[Stored]) -> Stored | None:
        try:
            return decode_json(self._path(what).read_bytes(), kind)
        except (OSError, ValueError):
            return None


def _profile_name(conditions: Conditions, batch: int, cap_bytes: int | None) -> str:
    key = f"{FORMAT}|{batch}|{conditions.power_mode}|{conditions.driver}"
    if cap_bytes is not None:
        key += f"|{cap_bytes}"
    return f"profile-{hashlib.sha256(key.encode()).hexdigest()[:8]}"
