"""``model.remote``: the servers' models that are connected to one open model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from threading import Lock
from typing import TYPE_CHECKING
from weakref import WeakMethod

from device_sdk.bundles.hybrid_pairs import hybrid_plan
from device_sdk.errors import UsageError
from device_sdk.execution.plan_in_use import PlanInUse
from device_sdk.offload.remote_model import LogarithmicPool, RemoteModel
from device_sdk.progress import Progress, SilentProgress
from device_sdk.session.choosing import Choosing
from device_sdk.session.remote_answers import RemoteAnswers
from device_sdk.supernet.plan import Ask, Plan

if TYPE_CHECKING:
    from device_sdk.session.samples import Labels, Samples


class Remote:
    """Connects servers' models.

    ``before``: called before a connection changes; ``use``: takes a plan, and does not keep the model alive.
    """

    def __init__(
        self,
        in_use: PlanInUse,
        answers: RemoteAnswers,
        choosing: Choosing,
        change: Lock,
        *,
        before: Callable[[], None],
        use: WeakMethod[Callable[[Plan], None]],
    ) -> None:
        self._in_use, self._answers, self._choosing, self._change = in_use, answers, choosing, change
        self._before, self._use = before, use

    @property
    def models(self) -> tuple[RemoteModel, ...]:
        """The connected models: those that answer samples, and the one that runs tails."""
        tail = self._answers.tail_model
        return (*self._answers.asked_models, *(() if tail is None else (tail,)))

    def connect(self, *models: RemoteModel) -> None:
        """Let servers' models answer what the plan sends to them: hard samples, or the rest of paths (``NAME:tail``).

        Of several that answer samples ``adapt`` takes the best for its plan, which names it: a general one, or one that
        knows some classes better. Without labels the answers of the first stand in for them.

        Nothing is sent that a model's ``privacy`` forbids: inputs need "inputs", activations "activations" or "inputs".
        Earlier connections of the same kind end. A plan that was restored by ``open`` uses the server from here on.

        Raises:
            UsageError: none is given, two have one name, by which plans tell them apart, or several run tails.
        """
        if not models:
            raise UsageError("no model is given to connect to", hint="remote.connect(RemoteModel(…))")
        self._in_use.running()
        self._before()
        self._answers.connect(models)

    def disconnect(self) -> None:
        """Disconnect all servers: everything is answered here. Idempotent."""
        self._before()
        self._answers.close()

    def pool(self, samples: Samples, labels: Labels, *, progress: Progress | None = None) -> LogarithmicPool | None:
        """Learn how to pool the connected server's answers with the device's own; hard samples get both from now on.

        The server is asked about all samples once. Not kept across ``open``: give it as ``RemoteModel(pool=…)``.
        Following the network ends; adapt again to have plans judged with pooled answers.

        Args:
            samples, labels: as for ``adapt``, but others than those that a network learned from.

        Returns:
            The pool; None if the device's answers add nothing to the server's, which replace them then.

        Raises:
            InputError: samples or labels are not what the model takes.
            TransferError: the server does not answer. UsageError: none is connected, or the model is no classifier.
        """
        self._in_use.running()
        with self._change:
            model, pool = self._choosing.pool(samples, labels, progress=progress or SilentProgress())
            self.connect(replace(model, pool=pool))
        return pool

    def use_hybrid(self, server: RemoteModel) -> None:
        """Run the plan that this bundle was trained for as the base of a hybrid, with the global model at ``server``.

        ``server.model`` is replaced by the model's name there.

        Raises:
            BundleError: the bundle is not the base of a hybrid.
        """
        plan = hybrid_plan(self._in_use.workspace.bundle)
        assert isinstance(plan.hard, Ask)
        self.connect(replace(server, model=plan.hard.server.model))
        use = self._use()
        assert use is not None
        use(plan)
