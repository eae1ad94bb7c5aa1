"""``package_with_joint_exits(…)``: a model and a copy of it that learned to answer early, in one bundle.

copy the model → train exits and the blocks before them → package both, the copy as a second member of a family
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import torch
from safetensors.torch import load, save

from device_sdk.errors import UsageError
from device_sdk.files.atomic import write_atomically
from device_sdk.progress import Progress
from packager.expanding import cut_model, examples_of
from packager.family.members import FamilyMember
from packager.family.pipeline import PackagedFamily, package_together, sizes_of_all
from packager.inputs.job import Job
from packager.inputs.recipe import Recipe
from packager.inputs.weights import BranchWeights
from packager.joining.training import JointTraining
from packager.joint_exits.network import PREFIX, JointNetwork, with_given_exits, with_new_exits
from packager.joint_exits.training import JointAccuracy, judge, train_jointly
from packager.output.checkpoints import Checkpoints
from packager.pipeline import Limits
from packager.supernet.blocks.trainable import count_macs

EARLY = "early"  # added to the name of the copy
_STATE = "joint_exits.pt"
_SHARE = 0.6  # of the minutes, for training the copy
_JUDGED = 1_000  # validation samples, at most, by which the copy is described


def package_with_joint_exits(
    job: Job,
    out: Path,
    *,
    private_key: Path | None = None,
    restart: bool = False,
    save_branches: Path | None = None,
    progress: Progress | None = None,
    limits: Limits | None = None,
) -> PackagedFamily:
    """As ``package``, with a second member: a copy of the model with up to ``job.recipe.joint_exits`` exits.

    The model's own blocks stay as they are. With ``branch_weights`` that hold a copy's, it is not trained again. The
    copy trains in this process alone.

    Args:
        save_branches: file for the weights of added blocks and exits, and for what the copy learned.

    Raises:
        PackagingError, UsageError, DataError, SignatureError, StorageError: as ``package``; the model is no classifier,
            or the recipe also wants bottlenecks.
    """
    _require_suitable(job)
    own, given = _without_joint_exits(job)
    if given is None:
        _length(job.recipe)  # a missing length is said before anything is written
    name = own.model.name

    def members(checkpoints: Checkpoints, shown: Progress) -> list[FamilyMember]:
        copy = _copied(job, given, checkpoints.folder / _STATE, shown)
        macs = count_macs(job.model.module, job.model.input_shape)
        size = job.model.image_shape[1:]
        whole, early = FamilyMember(name, own, macs, size), FamilyMember(f"{name}-{EARLY}", copy.job(own), macs, size)
        sizes = sizes_of_all([whole])
        if save_branches is not None:
            write_atomically(_beside(save_branches), save(dict(copy.learned)))
        return [_at_sizes(whole, sizes), _at_sizes(early, sizes)]

    packaged = package_together(
        members,
        job.description(),
        out,
        name=job.name,
        stitched=False,
        private_key=private_key,
        restart=restart,
        save_branches=save_branches,
        progress=progress,
        limits=limits,
    )
    if save_branches is not None and packaged.packaged.fresh:
        both = load(save_branches.read_bytes()) | load(_beside(save_branches).read_bytes())
        write_atomically(save_branches, save(both))
        _beside(save_branches).unlink()
    return packaged


@dataclass(frozen=True)
class _Copy:
    network: JointNetwork
    learned: Mapping[str, torch.Tensor]
    note: str

    def job(self, own: Job) -> Job:
        """The job of the copy: nothing is added or trained any more."""
        recipe = msgspec.structs.replace(
            own.recipe, max_span=1, identity=False, shrink_rates=(), exit_positions=0, steps=0, budget_minutes=None
        )
        weights = {f"{one.id}.{key}": value for one in self.network.exits for key, value in _state(one.module)}
        model = dataclasses.replace(own.model, module=self.network.module, name=f"{own.model.name}-{EARLY}")
        return dataclasses.replace(
            own, model=model, recipe=recipe, branch_weights=weights, notes=(self.note,), device_profile=None
        )


def _state(module: torch.nn.Module) -> Any:
    return module.state_dict().items()


def _require_suitable(job: Job) -> None:
    job.model.preprocessing.of_images()
    if job.task.kind != "classification":
        raise UsageError(
            f"joint exits are for classifiers; this is a model for {job.task.kind}", hint="leave joint_exits out"
        )
    if job.recipe.bottlenecks:
        raise UsageError("joint exits and bottlenecks do not go together yet", hint="leave one of them out")


def _without_joint_exits(job: Job) -> tuple[Job, BranchWeights | None]:
    """The job of the model alone, which leaves minutes for the copy, and given weights of this."""
    recipe = msgspec.structs.replace(job.recipe, joint_exits=0)
    if recipe.budget_minutes is not None:
        recipe = msgspec.structs.replace(recipe, budget_minutes=(1 - _SHARE) * recipe.budget_minutes)
    if job.branch_weights is None:
        return dataclasses.replace(job, recipe=recipe), None
    given = {name: value for name, value in job.branch_weights.items() if name.startswith(PREFIX)}
    rest = {name: value for name, value in job.branch_weights.items() if name not in given}
    return dataclasses.replace(job, recipe=recipe, branch_weights=rest or None), given or None


def _copied(job: Job, given: BranchWeights | None, state: Path, progress: Progress) -> _Copy:
    """The copy of the job's model, trained, or with what it learned before."""
    recipe, original = job.recipe, job.model.module
    with progress.task("copy the model", 1) as task:
        traced = cut_model(job, torch.from_numpy(examples_of(job)))
        task.advance()
    if traced.taps:
        raise UsageError("the head reads several cut points: such a model has no joint exits", hint="leave them out")
    steps = 0
    if given is not None:
        network = with_given_exits(traced, given)
    else:
        structures = () if isinstance(recipe.branches, str) else recipe.branches
        network = with_new_exits(traced, count=recipe.joint_exits, structures=structures, seed=recipe.seed)
        steps = train_jointly(
            network, original, job.batches(), recipe, _length(recipe), task=job.task, state=state, progress=progress
        )
    note = _note(judge(network, original, *job.held_out(_JUDGED)), steps)
    return _Copy(network, network.difference(original.state_dict()), note)


def _length(recipe: Recipe) -> JointTraining:
    minutes = recipe.budget_minutes
    if minutes is not None:
        return JointTraining(seconds=60 * _SHARE * minutes)
    if not recipe.steps:
        raise UsageError("exits that learn with the model need steps, minutes or branch_weights")
    return JointTraining(steps=recipe.steps)


def _note(found: JointAccuracy, steps: int) -> str:
    exits = ", ".join(f"{name} {share:.1%}" for name, share in found.exits.items())
    trained = f"{steps} steps of joint training" if steps else "joint exits from stored weights"
    return f"{trained}: {exits}; at the end {found.end:.1%}, the model itself {found.model:.1%}"


def _at_sizes(member: FamilyMember, sizes: tuple[tuple[int, ...], ...]) -> FamilyMember:
    recipe = msgspec.structs.replace(member.job.recipe, input_sizes=sizes)
    return dataclasses.replace(member, job=dataclasses.replace(member.job, recipe=recipe, name=member.name))


def _beside(path: Path) -> Path:
    return path.with_name(f"{path.name}.{EARLY}")
