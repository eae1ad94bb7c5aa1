from __future__ import annotations

import json
import threading
import time

import msgspec
import numpy as np
import pytest
from PIL import Image

from device_sdk.errors import (
    BlobError,
    BudgetError,
    ClosedError,
    InfeasibleBudgetError,
    InputError,
    SelfTestError,
    SignatureError,
    UsageError,
)
from device_sdk.logs.adaptation_log import Adapted, Infeasible, Opened, PlanChosen, PriorChanged, read_log
from device_sdk.policies.exits.placed_exits import without_timed_exits
from device_sdk.policies.gathering import AdaptationSettings
from device_sdk.session.adaptive_model import AdaptiveModel
from device_sdk.session.device_state import DeviceState
from device_sdk.supernet.cost import Power
from device_sdk.supernet.goal import Goal
from device_sdk.supernet.plan import Edge, Plan, Subnet

SMALL, LARGE = Goal(memory_mb=4.5), Goal(memory_mb=100)  # with the slow profile: the cheapest, and all
ALL = {"subnets", "exits", "abstain"}


@pytest.fixture
def model(tiny_bundle, slow_state):
    with AdaptiveModel.open(tiny_bundle.folder, state_folder=slow_state) as opened:
        yield opened


@pytest.fixture
def raw_logits(bundle, tiny_bundle, model):
    """What a bare ONNX Runtime answers for a subnet: no session of ours in between."""
    onnxruntime = pytest.importorskip("onnxruntime")
    from device_sdk.fragments.composition import compose

    def answer(subnet, tensor):
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        session = onnxruntime.InferenceSession(compose(bundle.stretch(subnet.edges)), options)
        return session.run(None, {"cut_0": tensor})[0]

    return answer


def test_a_new_model_is_the_full_one(model, bundle):
    assert model.plan == Plan(bundle.supernet.original)
    assert [line.event for line in read_log(model.log.path)] == [
        Opened(subnet=str(bundle.supernet.original), restored=False)
    ]


def test_answers_are_those_of_onnx_runtime(model, tiny_bundle, raw_logits):
    tensor = model.prepare(tiny_bundle.images)
    answer = model.infer(tensor)
    assert np.array_equal(answer.output, raw_logits(model.plan.subnet, tensor))
    assert answer.source == ("subnet",) * 60
    assert answer.latency_ms > 0
    names = model.bundle.manifest.task.class_names
    assert answer.labels == tuple(names[label] for label in tiny_bundle.labels)


def test_confidence_is_the_highest_softmax_probability(model, tiny_bundle):
    answer = model(tiny_bundle.images[:4])
    powers = np.exp(answer.output.astype(np.float64))
    np.testing.assert_allclose(answer.confidence, (powers / powers.sum(axis=1, keepdims=True)).max(axis=1))


def test_one_sample_needs_no_batch_axis(model, tiny_bundle):
    batch = model(tiny_bundle.images[:2])
    single = model(tiny_bundle.images[1])
    assert single.output.shape == (1, 3)
    np.testing.assert_allclose(single.output[0], batch.output[1], atol=1e-5)
    prepared = model.prepare(tiny_bundle.images[1])
    assert np.array_equal(model.infer(prepared[0]).output, single.output)
    assert np.array_equal(model(Image.fromarray(tiny_bundle.images[1])).output, single.output)


def test_a_tensor_need_not_be_contiguous(model, tiny_bundle):
    tensor = model.prepare(tiny_bundle.images[:6])
    turned = np.asfortranarray(tensor)
    assert np.array_equal(model.infer(turned[::2]).output, model.infer(tensor[::2].copy()).output)


@pytest.mark.parametrize(
    ("tensor", "message"),
    [
        (
            np.zeros((1, 3, 20, 21), np.float32),
            r"expected a tensor of shape \[batch, 3, 20, 20\], got \[1, 3, 20, 21\]",
        ),
        (np.zeros((20, 20, 3), np.float32), r"\[batch, 3, 20, 20\], got \[20, 20, 3\]"),
        (np.zeros((1, 1, 3, 20, 20), np.float32), r"\[batch, 3, 20, 20\]"),
        (np.zeros((0, 3, 20, 20), np.float32), r"got \[0, 3, 20, 20\]"),
        (np.float32(1), "expected a numpy array"),
        (np.zeros((), np.float32), r"got \[\]"),
        (np.zeros((1, 3, 20, 20)), "expected float32, got float64"),
        (np.zeros((1, 3, 20, 20), np.uint8), "expected float32, got uint8"),
        (np.zeros((1, 3, 20, 20), ">f4"), "expected float32, got >f4"),
        ([[1.0, 2.0]], "expected a numpy array, got list"),
        (None, "expected a numpy array, got NoneType"),
    ],
)
def test_a_tensor_that_does_not_fit_is_refused_with_what_was_expected(model, tensor, message):
    with pytest.raises(InputError, match=message):
        model.infer(tensor)


@pytest.mark.parametrize(
    "images", [np.zeros((20, 20, 3), np.float32), np.zeros((20, 21, 3), np.uint8), np.zeros((20, 20), np.uint8)]
)
def test_images_that_do_not_fit_are_refused(model, images):
    with pytest.raises(InputError, match="expected"):
        model(images)


def test_a_model_that_takes_no_images_says_so(own_bundle, runtime, tmp_path):
    def flatten(manifest):
        manifest["cut_points"][0]["tensors"][0]["shape"] = [3, 400]

    own_bundle.edit(flatten)
    from device_sdk.bundles.bundle import Bundle

    model = AdaptiveModel(Bundle.open(own_bundle.folder), runtime=runtime, state_folder=tmp_path)
    with pytest.raises(InputError, match=r"takes tensors \[batch, 3, 400\], not images"):
        model.prepare(np.zeros((20, 20, 3), np.uint8))


def test_a_closed_model_answers_nothing_more(tiny_bundle, slow_state):
    model = AdaptiveModel.open(tiny_bundle.folder, state_folder=slow_state)
    model.close()
    model.close()
    for use in (
        lambda: model(tiny_bundle.images[0]),
        lambda: model.plan,
        lambda: model.profile(),
        lambda: model.adapt(tiny_bundle.images, LARGE, labels=tiny_bundle.labels),
    ):
        with pytest.raises(ClosedError, match="was closed"):
            use()


def test_leaving_the_context_closes_the_model(tiny_bundle, slow_state):
    with pytest.raises(ZeroDivisionError), AdaptiveModel.open(tiny_bundle.folder, state_folder=slow_state) as model:
        1 / 0  # noqa: B018
    with pytest.raises(ClosedError):
        model(tiny_bundle.images[0])


def test_adapting_switches_to_the_subnet_found(model, tiny_bundle, raw_logits):
    found = model.adapt(tiny_bundle.images, SMALL, labels=tiny_bundle.labels)
    assert model.plan == found.plan == Plan(Subnet((Edge("o0"), Edge("m1-4"), Edge("o4"))))
    tensor = model.prepare(tiny_bundle.images[:5])
    assert np.array_equal(model.infer(tensor).output, raw_logits(found.subnet, tensor))
    last = list(read_log(model.log.path))[-1].event
    assert isinstance(last, Adapted)
    assert (last.subnet, last.budget_memory_mb, last.samples) == (str(found.subnet), 4.5, 42)


def test_pillow_images_and_lists_of_labels_will_do(model, tiny_bundle):
    images = [Image.fromarray(image) for image in tiny_bundle.images[:9]]
    found = model.adapt(images, SMALL, labels=tiny_bundle.labels[:9].tolist())
    assert found.samples == 9


def test_the_plan_is_restored_when_the_bundle_is_opened_again(model, tiny_bundle, slow_state):
    found = model.adapt(tiny_bundle.images, SMALL, labels=tiny_bundle.labels)
    with AdaptiveModel.open(tiny_bundle.folder, state_folder=slow_state) as again:
        assert again.plan == found.plan
        assert list(read_log(again.log.path))[-1].event == Opened(subnet=str(found.subnet), restored=True)


@pytest.mark.parametrize(
    "subnet", [Subnet((Edge("o0"), Edge("gone"), Edge("o4"))), Subnet((Edge("o0", "int4"),)), Subnet(())]
)
def test_a_remembered_plan_that_the_bundle_does_not_have_is_ignored(tiny_bundle, bundle, runtime, slow_state, subnet):
    DeviceState(slow_state, bundle, runtime).save_plan(Plan(subnet))
    with AdaptiveModel.open(tiny_bundle.folder, state_folder=slow_state) as model:
        assert model.plan == Plan(bundle.supernet.original)


def test_an_infeasible_budget_leaves_the_plan_and_is_logged(model, tiny_bundle):
    before = model.adapt(tiny_bundle.images, SMALL, labels=tiny_bundle.labels).plan
    with pytest.raises(InfeasibleBudgetError):
        model.adapt(tiny_bundle.images, Goal(latency_ms=1e-6), labels=tiny_bundle.labels)
    assert model.plan == before
    last = list(read_log(model.log.path))[-1].event
    assert isinstance(last, Infeasible)
    assert (last.budget_latency_ms, last.nearest) == (1e-6, "o0 m1-4 o4")
    assert last.nearest_latency_ms > 1e-6


def test_a_search_that_is_cancelled_leaves_the_plan_and_a_readable_log(model, tiny_bundle, bundle):
    settings = AdaptationSettings(cancelled=lambda: True)
    with pytest.raises(BudgetError):
        model.adapt(tiny_bundle.images, LARGE, labels=tiny_bundle.labels, settings=settings)
    assert model.plan == Plan(bundle.supernet.original)
    list(read_log(model.log.path))


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([0, 1], "10 samples and labels of shape"),
        (["red"] * 10, "must be class indices"),
        (np.zeros(10), "must be class indices"),
        ([[0]] * 10, "must be class indices"),
        ([3] * 10, "between 0 and 2"),
        ([-1] * 10, "between 0 and 2"),
    ],
)
def test_labels_that_make_no_sense_are_refused(model, tiny_bundle, labels, message):
    with pytest.raises(InputError, match=message):
        model.adapt(tiny_bundle.images[:10], LARGE, labels=labels)


@pytest.mark.parametrize("samples", [[], np.zeros((0, 20, 20, 3), np.uint8)])
def test_no_samples_are_refused(model, samples):
    with pytest.raises(InputError):
        model.adapt(samples, LARGE)


def test_the_self_test_runs_when_the_bundle_is_first_opened_and_not_again(own_bundle, tmp_path):
    state = tmp_path / "state"
    AdaptiveModel.open(own_bundle.folder, state_folder=state).close()
    unused = own_bundle.blob("m1-4")  # neither original nor in the plan: only the self-test reads it
    data = bytearray(unused.read_bytes())
    data[len(data) // 2] ^= 1
    unused.write_bytes(data)
    AdaptiveModel.open(own_bundle.folder, state_folder=state).close()
    with pytest.raises(BlobError, match="does not match its digest"):
        AdaptiveModel.open(own_bundle.folder, state_folder=tmp_path / "another state")


def test_a_bundle_that_failed_its_self_test_is_refused_again_next_time(own_bundle, tmp_path):
    def change(manifest):
        manifest["self_test"]["original"]["samples"][0][0] += 1.0

    own_bundle.edit(change)
    for _ in range(2):
        with pytest.raises(SelfTestError):
            AdaptiveModel.open(own_bundle.folder, state_folder=tmp_path)


def test_trust_is_checked_when_a_model_is_opened(own_bundle, tmp_path):
    AdaptiveModel.open(own_bundle.folder, trust=own_bundle.public_key, state_folder=tmp_path).close()
    own_bundle.edit(lambda manifest: manifest.update(version=2))
    with pytest.raises(SignatureError):
        AdaptiveModel.open(own_bundle.folder, trust=own_bundle.public_key, state_folder=tmp_path)


def test_a_runtime_that_nobody_knows_is_refused(tiny_bundle, tmp_path):
    with pytest.raises(UsageError, match="no runtime abacus") as caught:
        AdaptiveModel.open(tiny_bundle.folder, runtime="abacus", state_folder=tmp_path)
    assert "onnxruntime" in caught.value.hint


def test_a_profile_is_measured_once_and_again_on_demand(tiny_bundle, tmp_path):
    with AdaptiveModel.open(tiny_bundle.folder, state_folder=tmp_path) as model:
        first = model.profile()
        assert model.profile() == first
        again = model.profile(again=True)
        assert again != first
        assert model.profile() == again
        events = [json.loads(line)["event"]["event"] for line in model.log.path.read_text().splitlines()]
    assert events == ["opened", "profiled", "profiled"]


def answers_while(model, tensor, change, *, threads=4):
    """All answers that ``threads`` callers get while ``change`` runs, and the errors they met."""
    ended = threading.Event()
    answers, errors = [], []

    def call():
        try:
            while not ended.is_set():
                answers.append(model.infer(tensor).output)
        except Exception as error:
            errors.append(error)

    callers = [threading.Thread(target=call) for _ in range(threads)]
    for caller in callers:
        caller.start()
    try:
        change()
    finally:
        ended.set()
        for caller in callers:
            caller.join(timeout=60)
    return answers, errors


@pytest.mark.slow
def test_no_answer_is_lost_or_mixed_while_another_thread_adapts(model, tiny_bundle):
    tensor = model.prepare(tiny_bundle.images[:2])
    expected = {}
    for budget in (SMALL, LARGE):
        model.adapt(tiny_bundle.images[:9], budget, labels=tiny_bundle.labels[:9])
        expected[str(model.plan.subnet)] = model.infer(tensor).output.tobytes()
    assert len(set(expected.values())) == 2

    def adapt_to_and_fro():
        for budget in (SMALL, LARGE) * 4:
            model.adapt(tiny_bundle.images[:9], budget, labels=tiny_bundle.labels[:9])

    answers, errors = answers_while(model, tensor, adapt_to_and_fro)
    assert errors == []
    assert {answer.tobytes() for answer in answers} == set(expected.values())


class Meddler(np.ndarray):
    """A tensor that does something when it is looked at: just after a call has taken the plan, before it runs it."""

    meddle = staticmethod(lambda: None)

    @property
    def shape(self):
        self.meddle()
        return super().shape


@pytest.mark.parametrize("change", ["adapt", "close"])
def test_a_call_ends_with_the_plan_with_which_it_began(model, tiny_bundle, change):
    tensor = model.prepare(tiny_bundle.images[:2])
    expected = model.infer(tensor).output
    meddler = tensor.view(Meddler)

    def meddle():
        meddler.meddle = lambda: None
        if change == "adapt":
            model.adapt(tiny_bundle.images, SMALL, labels=tiny_bundle.labels)
        else:
            model.close()

    meddler.meddle = meddle
    assert np.array_equal(model.infer(meddler).output, expected)
    if change == "adapt":
        assert not np.array_equal(model.infer(tensor).output, expected)
    else:
        with pytest.raises(ClosedError):
            model.infer(tensor)


def test_closing_while_others_call_gives_them_their_answer_or_says_closed(tiny_bundle, slow_state):
    model = AdaptiveModel.open(tiny_bundle.folder, state_folder=slow_state)
    _, errors = answers_while(model, model.prepare(tiny_bundle.images[:8]), lambda: (time.sleep(0.2), model.close()))
    assert all(isinstance(error, ClosedError) for error in errors)


def test_an_adaptation_does_not_reopen_a_model_that_was_closed_meanwhile(tiny_bundle, slow_state):
    model = AdaptiveModel.open(tiny_bundle.folder, state_folder=slow_state)

    def close_meanwhile() -> bool:
        model.close()
        return False

    settings = AdaptationSettings(cancelled=close_meanwhile)
    with pytest.raises(ClosedError):
        model.adapt(tiny_bundle.images, LARGE, labels=tiny_bundle.labels, settings=settings)
    with pytest.raises(ClosedError):
        model(tiny_bundle.images[0])


def test_warming_up_is_no_call(model):
    model.warm_up()
    model.close()
    with pytest.raises(ClosedError):
        model.warm_up()


def test_a_model_whose_blobs_are_deleted_keeps_serving_and_stays_with_its_plan(own_bundle, tmp_path):
    with AdaptiveModel.open(own_bundle.folder, state_folder=tmp_path) as model:
        before = model(own_bundle.images[0]).output
        for blob in (own_bundle.folder / "blobs").iterdir():
            blob.unlink()
        with pytest.raises(BlobError, match="cannot be read"):
            model.use(Plan(Subnet((Edge("o0"), Edge("m1-4"), Edge("o4")))))
        assert np.array_equal(model(own_bundle.images[0]).output, before)
        assert model.plan == Plan(model.bundle.supernet.original)


# All kinds of plans


def test_the_plan_that_a_goal_puts_first_runs_from_then_on(model, tiny_bundle):
    goal = Goal(accuracy=0.5, optimise="latency_ms", coverage=0.9)
    found = model.adapt(tiny_bundle.images, goal, ALL, tiny_bundle.labels)
    assert model.plan == found.plan
    assert not goal.requirement().misses(found.expected)
    assert (found.samples, found.judged) == (60, 18)
    assert {"subnet", "exits", "abstain"} <= set(found.by_kind)
    [last] = [line.event for line in read_log(model.log.path) if isinstance(line.event, PlanChosen)]
    assert (last.plan_kind, last.limits) == (found.choice.kind, {"accuracy": 0.5, "coverage": 0.9})
    assert last.accuracy == found.held_out.accuracy


def test_a_plan_with_exits_keeps_others_for_deadlines_unless_memory_is_limited(model, tiny_bundle):
    goal = Goal(accuracy=0.5, optimise="latency_ms")
    choice = model.adapt(tiny_bundle.images, goal, ALL, tiny_bundle.labels).choice
    supernet = model.bundle.supernet
    passed = {exit_.position for exit_ in supernet.exits_along(choice.plan.subnet)}
    assert [supernet.exit(one.exit).position for one in model.plan.exits] == sorted(passed) != []
    assert choice.kind == without_timed_exits(choice.plan).kind
    assert choice.by_kind[choice.kind].cost == choice.cost
    assert model.infer(model.prepare(tiny_bundle.images[:1]), deadline_ms=10_000.0).source is not None
    limited = msgspec.structs.replace(goal, memory_mb=1000.0)
    plan = model.adapt(tiny_bundle.images, limited, ALL, tiny_bundle.labels).plan
    assert plan == without_timed_exits(plan)


def test_an_accuracy_is_promised_on_samples_that_the_choice_did_not_see(model, tiny_bundle):
    goal = Goal(accuracy=0.8, certainty=0.9, optimise="latency_ms")
    found = model.adapt(tiny_bundle.images, goal, ALL, tiny_bundle.labels)
    assert (found.promise.certainty, found.promise.samples) == (0.9, 18)
    assert found.promise.least_accuracy >= 0.8
    assert found.promise.wrong == round(18 * (1 - found.held_out.accuracy))
    too_much = Goal(accuracy=0.95, certainty=0.9)  # 18 right of 18 prove 0.88
    before = model.plan
    with pytest.raises(InfeasibleBudgetError, match=r"accuracy 0\.8"):
        model.adapt(tiny_bundle.images, too_much, ALL, tiny_bundle.labels)
    assert model.plan == before


def test_a_plan_that_is_not_taken_leaves_the_one_in_use_and_no_line_in_the_log(model, tiny_bundle):
    before, lines = model.plan, len(list(read_log(model.log.path)))
    found = model.adapt(tiny_bundle.images, SMALL, labels=tiny_bundle.labels, take=False)
    assert found.plan != before
    assert model.plan == before
    assert len(list(read_log(model.log.path))) == lines


def test_a_goal_that_no_plan_keeps_leaves_the_plan_in_use(model, tiny_bundle):
    before = model.plan
    with pytest.raises(InfeasibleBudgetError, match="no plan keeps the requirement"):
        model.adapt(tiny_bundle.images, Goal(latency_ms=1e-6), ALL, tiny_bundle.labels)
    assert model.plan == before


def test_without_labels_the_full_models_answers_stand_in(model, tiny_bundle):
    found = model.adapt(tiny_bundle.images, Goal(accuracy=1.0, optimise="latency_ms"), ALL)
    assert found.expected.accuracy == 1.0


def test_samples_of_one_class_will_do_for_all_kinds(model, tiny_bundle):
    labels = np.asarray(tiny_bundle.labels)
    only = labels == np.bincount(labels).argmax()
    images, labels = tiny_bundle.images[only], labels[only]
    model.adapt(images, Goal(optimise="latency_ms", max_drop=0.005), {"exits"}, labels)
    found = model.adapt(images, Goal(latency_ms=1000.0), ALL, labels)
    assert found.expected.accuracy is not None
    assert model(images[:2]).output.shape == (2, 3)


def test_following_the_network_needs_plans_for_other_networks(model, tiny_bundle):
    model.adapt(tiny_bundle.images, Goal(latency_ms=1000.0), ALL, tiny_bundle.labels)
    with pytest.raises(UsageError, match="no plans for other networks"):
        model.live.start("network")


def test_energy_is_known_with_the_devices_power_alone(model, tiny_bundle):
    goal = Goal(energy_mj=1000.0)
    with pytest.raises(InfeasibleBudgetError, match="energy_mj inf"):
        model.adapt(tiny_bundle.images, goal, ALL, tiny_bundle.labels)
    found = model.adapt(tiny_bundle.images, goal, ALL, tiny_bundle.labels, power=Power(active_w=2.0))
    assert found.expected.energy_mj == pytest.approx(2.0 * found.expected.latency_ms)


@pytest.mark.parametrize(
    ("consider", "said"),
    [
        ({"ask"}, "no server is connected that answers samples"),
        ({"split"}, "no server is connected that runs tails"),
        ({"hybrid"}, "no server is connected that has this bundle"),
        ({"subnet"}, "there is no kind of plan 'subnet'"),
        (set(), "no kind of plan may be considered"),
    ],
)
def test_a_kind_that_lacks_what_it_needs_says_so(model, tiny_bundle, consider, said):
    before = model.plan
    with pytest.raises(UsageError, match=said):
        model.adapt(tiny_bundle.images, Goal(latency_ms=100.0), consider, tiny_bundle.labels)
    assert model.plan == before


@pytest.mark.parametrize("old", ["calibrate", "plan_for", "split", "watch", "connect", "set_exits", "log_path"])
def test_an_old_name_names_the_new_one(model, old):
    with pytest.raises(AttributeError, match=f"{old} is now "):
        getattr(model, old)


def test_of_two_threads_that_adapt_the_second_waits(model, tiny_bundle):
    running, overlaps = [], []

    def note() -> bool:
        overlaps.append(len(running) > 1)
        return False

    def adapt():
        settings = AdaptationSettings(cancelled=lambda: running.append(1) or note() or bool(running.clear()))
        model.adapt(tiny_bundle.images, SMALL, labels=tiny_bundle.labels, settings=settings)

    threads = [threading.Thread(target=adapt) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert overlaps
    assert not any(overlaps)


# The mix of classes while serving


def test_the_mix_of_classes_is_followed_and_the_prior_is_there_after_opening_again(tiny_bundle, slow_state):
    images = tiny_bundle.images[tiny_bundle.labels == tiny_bundle.labels[0]][:1]
    with AdaptiveModel.open(tiny_bundle.folder, state_folder=slow_state) as model:
        model.live.start("classes")
        bare = model(images).output
        deadline = time.monotonic() + 60
        while model.plan.class_prior is None and time.monotonic() < deadline:
            model(images)
        prior = model.plan.class_prior
        assert prior is not None
        assert int(np.argmax(prior.log_ratios)) == int(bare.argmax())
        offsets = prior.temperature * np.array(prior.log_ratios)
        np.testing.assert_allclose(model(images).output, bare + offsets, rtol=1e-4, atol=1e-4)
        model.live.stop("latency", "classes")
        model.live.stop("latency", "classes")
        [changed] = [line.event for line in read_log(model.log.path) if isinstance(line.event, PriorChanged)]
        assert changed.answers >= 100
        assert 0.5 < changed.moved_share <= 1
        plan = model.plan
    with AdaptiveModel.open(tiny_bundle.folder, state_folder=slow_state) as model:
        assert model.plan == plan


def test_plans_that_live_update_switches_to_have_the_prior_too(tiny_bundle, slow_state, runtime):
    images, labels = tiny_bundle.images, tiny_bundle.labels
    with AdaptiveModel.open(tiny_bundle.folder, state_folder=slow_state) as model:
        settings = AdaptationSettings(time_limit_s=1, use_prior=False, fill_pool=True)
        model.adapt(images, Goal(latency_ms=1000), labels=labels, settings=settings)
        model.live.start("latency", "classes")
        deadline = time.monotonic() + 60
        while model.plan.class_prior is None and time.monotonic() < deadline:
            model(images[:1])
        model.live.stop("latency", "classes")
        pool = DeviceState(slow_state, model.bundle, runtime).load_pool()
        assert pool is not None
        assert {one.plan.class_prior for one in pool.candidates} == {model.plan.class_prior} != {None}


def test_the_latency_cannot_be_followed_without_an_adaptation(model):
    with pytest.raises(UsageError, match="no plan pool"):
        model.live.start("latency")
