"""The step of packaging that grows exits from the branch zoo (docs/adr/0043)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import msgspec

from device_sdk.errors import UsageError
from device_sdk.progress import Progress
from packager.branch_zoo.cultivation import Cultivation
from packager.branch_zoo.modules import build_branch
from packager.branch_zoo.plain import exit_positions
from packager.branch_zoo.rungs import ZooSettings
from packager.branch_zoo.selection import answer_times, rung_counts
from packager.branch_zoo.specs import GRID, BranchSpec, branch_cost, layout_of, parse, specs_for
from packager.inputs.job import Job
from packager.inputs.recipe import Recipe
from packager.output.checkpoints import Checkpoints
from packager.supernet.blocks.streams import several
from packager.supernet.expansion import Expansion, TrainableExit
from packager.torch_device import on_device, resolve_device
from packager.training.ranks import Ranks

_HELD_OUT = 1_000  # validation samples by which branches are dropped and chosen
_MB = 1_000_000  # bytes
_SIBLINGS = 1.5  # exits of a cut point over the branches left, with self-merged siblings


@dataclass(frozen=True)
class GrownExits:
    """The expansion with its exits, and the updates at all cut points together."""

    expansion: Expansion
    steps: int


def wants_zoo(recipe: Recipe, expansion: Expansion) -> bool:
    """True if exits are to be trained from the zoo; False if ``branch_weights`` brought some."""
    return recipe.branches != "two" and not expansion.exits and bool(zoo_positions(expansion, recipe.exit_positions))


def zoo_positions(expansion: Expansion, count: int) -> tuple[int, ...]:
    """Up to ``count`` cut points at which branches of the zoo can be built."""
    traced = expansion.traced
    macs = [block.macs for block in expansion.originals]
    positions = exit_positions(macs, count=count, left_out=several(traced.cuts))
    specs = [traced.tensors[position] for position in positions]
    return tuple(
        k for k, spec in zip(positions, specs, strict=True) if spec.dtype == "float32" and layout_of(spec.shape)
    )


def grid_of(recipe: Recipe) -> tuple[BranchSpec, ...]:
    """The specs that the recipe wants to be trained.

    Raises:
        UsageError: there is no branch of a name in ``branches``.
    """
    if isinstance(recipe.branches, str):
        return GRID
    found = {name: parse(name) for name in recipe.branches}
    unknown = sorted(name for name, spec in found.items() if spec is None or spec.merged)
    if unknown or not found:
        named = f"there is no branch {unknown[0][:80]}" if unknown else "the recipe's branches are an empty list"
        raise UsageError(named, hint=f"names are like {GRID[0].name} or {GRID[-1].name}; docs/adr/0043 lists all parts")
    return tuple(spec for spec in found.values() if spec is not None)


def without_exit_steps(job: Job, expansion: Expansion) -> Job:
    """The job whose steps are those of the blocks alone."""
    if job.recipe.steps is None or not wants_zoo(job.recipe, expansion):
        return job
    left = job.recipe.steps - _exit_steps(job.recipe, expansion)
    return replace(job, recipe=msgspec.structs.replace(job.recipe, steps=left))


def block_seconds(recipe: Recipe, expansion: Expansion, seconds_left: Callable[[], float]) -> Callable[[], float]:
    """The time left for training blocks, with that of the zoo reserved."""
    if not wants_zoo(recipe, expansion):
        return seconds_left
    reserved_s = _share(recipe, expansion) * seconds_left()
    return lambda: max(0.0, seconds_left() - reserved_s)


def with_stand_ins(recipe: Recipe, expansion: Expansion) -> Expansion:
    """The expansion with as many exits as the zoo will leave, for estimating the cost of packaging."""
    if not wants_zoo(recipe, expansion):
        return expansion
    exits: list[TrainableExit] = []
    classes = expansion.traced.tensors[-1].size
    for position in zoo_positions(expansion, recipe.exit_positions):
        shape = expansion.traced.tensors[position].shape
        specs = specs_for(shape, grid_of(recipe))
        every = max(1, round(len(specs) / (_SIBLINGS * rung_counts(len(specs))[-1])))
        for spec in specs[::every]:
            module = build_branch(spec, shape, classes=classes, seed=0)
            assert module is not None
            macs = branch_cost(spec, shape, classes=classes).macs
            exits.append(TrainableExit(spec.exit_id(position), position, spec.name, module, macs))
    return replace(expansion, exits=tuple(exits))


def grow_exits(
    job: Job,
    expansion: Expansion,
    checkpoints: Checkpoints,
    progress: Progress,
    ranks: Ranks,
    *,
    seconds_left: Callable[[], float],
    batch: int | None,
) -> GrownExits:
    """Train the zoo, all processes together; only rank 0 gets the exits.

    ``batch``: limit of a batch, None for the recipe's.

    Raises:
        ResumeError: a saved state is damaged.
        TrainingError: another process has ended.
    """
    recipe = job.recipe
    if not wants_zoo(recipe, expansion):
        return GrownExits(expansion, 0)
    positions = zoo_positions(expansion, recipe.exit_positions)
    steps = None if recipe.steps is None else _exit_steps(recipe, expansion) // len(positions)
    if steps == 0:
        return GrownExits(expansion.noting("no exits: the training had no step for them"), 0)
    repeating = replace(job, recipe=msgspec.structs.replace(recipe, variants=max(1, recipe.variants)))
    device = resolve_device(recipe.device, local_rank=ranks.local_rank)
    with on_device([block.module for block in expansion.originals], device):
        found = Cultivation(
            expansion,
            repeating.batches(most=batch),
            job.held_out(_HELD_OUT),
            positions=positions,
            times=answer_times(expansion, job.device_profile),
            settings=ZooSettings(
                steps=steps,
                cache_bytes=recipe.cache_mb * _MB,
                temperature=recipe.temperature,
                label_weight=recipe.label_weight,
                seed=recipe.seed,
                checkpoint_seconds=recipe.checkpoint_seconds,
                grid=grid_of(recipe),
            ),
            folder=checkpoints.folder,
            progress=progress,
            ranks=ranks,
            device=device,
            task=job.task,
            seconds_left=seconds_left,
            saved=checkpoints.save_time,
        ).run()
    grown = replace(expansion, exits=tuple(one.exit for one in found.grown))
    return GrownExits(grown.noting(*found.notes), sum(found.steps.values()))


def _share(recipe: Recipe, expansion: Expansion) -> float:
    """Of the training, for exits."""
    return recipe.exit_share if expansion.trained else 1.0


def _exit_steps(recipe: Recipe, expansion: Expansion) -> int:
    """Steps for exits, at all cut points together."""
    return round((recipe.steps or 0) * _share(recipe, expansion))
