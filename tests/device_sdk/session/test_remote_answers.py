"""What plans that abstain or ask do without a server at hand; tests/end_to_end has the real one."""

from __future__ import annotations

import numpy as np
import pytest

from device_sdk.errors import UsageError
from device_sdk.offload.remote_model import RemoteModel
from device_sdk.session.adaptive_model import AdaptiveModel
from device_sdk.session.answer import ABSTAINED, FALLBACK, SUBNET
from device_sdk.supernet.plan import (
    ANY_SERVER,
    UNREACHABLE_CONFIDENCE,
    Abstain,
    Ask,
    ExitChoice,
    Logistic,
    MaxConfidence,
    Plan,
    RemoteRef,
    Split,
)

NOWHERE = "http://127.0.0.1:9"
ALL = MaxConfidence(UNREACHABLE_CONFIDENCE)


@pytest.fixture
def model(tiny_bundle, slow_state):
    with AdaptiveModel.open(tiny_bundle.folder, state_folder=slow_state) as opened:
        yield opened


@pytest.fixture
def subnet(bundle):
    return bundle.supernet.original


def tail_of(bundle, position):
    return tuple(e for e, block in bundle.supernet.walk(bundle.supernet.original) if block.start >= position)


def test_abstaining_gives_no_label_to_the_samples_that_are_hard(model, subnet, tiny_bundle):
    model.use(Plan(subnet))
    confidences = model(tiny_bundle.images).confidence
    threshold = float(np.median(confidences))
    model.use(Plan(subnet, hard=Abstain(MaxConfidence(threshold))))
    answer = model(tiny_bundle.images)
    assert [source == ABSTAINED for source in answer.source] == (confidences < threshold).tolist()
    assert [label is None for label in answer.labels] == (confidences < threshold).tolist()


def test_a_plan_that_asks_without_a_server_answers_here_and_marks_it(model, subnet, tiny_bundle, caplog):
    model.use(Plan(subnet, hard=Ask(ALL, RemoteRef("big"))))
    assert "no server is connected that has big" in caplog.text
    caplog.clear()
    assert set(model(tiny_bundle.images).source) == {FALLBACK}
    assert not caplog.text  # said once, when the plan was taken


@pytest.mark.parametrize(
    ("privacy", "named", "said"),
    [
        ("never", ANY_SERVER, "forbids"),
        ("activations", ANY_SERVER, "sends inputs"),
        ("inputs", RemoteRef("another"), "was made for another"),
    ],
)
def test_what_the_privacy_setting_or_the_plan_rules_out_is_not_sent(
    model, subnet, tiny_bundle, caplog, privacy, named, said
):
    model.remote.connect(RemoteModel(server=NOWHERE, model="big", privacy=privacy))
    model.use(Plan(subnet, hard=Ask(ALL, named)))
    assert said in caplog.text
    assert set(model(tiny_bundle.images).source) == {FALLBACK}


def test_an_input_is_never_sent_to_a_tail_that_may_have_activations_only(model, bundle, subnet, tiny_bundle, caplog):
    model.remote.connect(RemoteModel(server=NOWHERE, model="tiny:tail", privacy="activations"))
    model.use(Plan(subnet, split=Split(0, (8,), tail_of(bundle, 0), RemoteRef("tiny:tail"))))
    assert "forbids" in caplog.text
    assert set(model(tiny_bundle.images).source) == {SUBNET}


def test_a_restored_plan_says_which_server_it_waits_for(tiny_bundle, bundle, subnet, slow_state, caplog):
    plan = Plan(subnet, split=Split(2, (8,), tail_of(bundle, 2), RemoteRef("tiny:tail")))
    with AdaptiveModel.open(tiny_bundle.folder, state_folder=slow_state) as model:
        model.use(plan)
    caplog.clear()
    with AdaptiveModel.open(tiny_bundle.folder, state_folder=slow_state) as model:
        assert model.plan == plan
        assert "no server is connected that has tiny:tail" in caplog.text
        assert set(model(tiny_bundle.images).source) == {SUBNET}


def whole(model: str = "big") -> Split:
    return Split(0, (), (), RemoteRef(model))


@pytest.mark.parametrize(
    ("privacy", "model_there", "said"),
    [
        ("never", "big", "forbids"),
        ("activations", "big", "sends inputs"),
        ("inputs", "other", "was made for big"),
        (None, "big", "no server is connected that has big"),
    ],
)
def test_a_plan_of_a_servers_model_runs_here_where_it_may_not_be_asked(
    model, subnet, tiny_bundle, caplog, privacy, model_there, said
):
    model.use(Plan(subnet))
    here = model(tiny_bundle.images).output
    if privacy is not None:
        model.remote.connect(RemoteModel(server=NOWHERE, model=model_there, privacy=privacy))
    model.use(Plan(subnet, split=whole()))
    assert said in caplog.text
    answer = model(tiny_bundle.images)
    assert set(answer.source) == {SUBNET}
    np.testing.assert_allclose(answer.output, here, atol=1e-5)


def test_a_plan_of_a_servers_model_falls_back_where_that_does_not_answer(model, subnet, tiny_bundle):
    model.remote.connect(RemoteModel(server=NOWHERE, model="big", privacy="inputs"))
    model.use(Plan(subnet, split=whole()))
    assert set(model(tiny_bundle.images).source) == {FALLBACK}
    model.use(Plan(subnet, split=whole(), hard=Abstain(ALL)))
    assert set(model(tiny_bundle.images).source) == {ABSTAINED}


@pytest.mark.parametrize(
    ("split", "exits", "said"),
    [
        (Split(0, (8,), (), RemoteRef("big")), False, "no bits"),
        (Split(0, (), (), RemoteRef("big")), True, "lies behind the split"),
    ],
)
def test_a_plan_of_a_servers_model_that_makes_no_sense_is_refused(model, bundle, subnet, split, exits, said):
    chosen = tuple(ExitChoice(one.id, 0.5) for one in bundle.supernet.exits_along(subnet)[:1]) if exits else ()
    before = model.plan
    with pytest.raises(UsageError, match=said):
        model.use(Plan(subnet, exits=chosen, split=split))
    assert model.plan == before


def test_a_decider_for_other_classes_is_refused(model, subnet):
    odd = Logistic(0.5, ("top_1",), (1.0,), 0.0, (0.0,) * 99, (0.0,) * 99)
    before = model.plan
    with pytest.raises(UsageError, match="was made for 99 classes"):
        model.use(Plan(subnet, hard=Abstain(odd)))
    assert model.plan == before


def test_activations_of_hard_samples_need_a_connected_tail(model, bundle, subnet, tiny_bundle):
    model.use(Plan(subnet, hard=Ask(ALL, RemoteRef("tiny:tail"), 2, tail_of(bundle, 2))))
    answer = model(tiny_bundle.images)
    assert set(answer.source) == {FALLBACK}
    model.use(Plan(subnet))
    np.testing.assert_allclose(answer.output, model(tiny_bundle.images).output, atol=1e-5)


def test_of_several_connected_models_the_one_that_the_plan_names_is_asked(model, subnet, caplog):
    general, birds = (RemoteModel(server=NOWHERE, model=name, privacy="inputs") for name in ("general", "birds"))
    model.remote.connect(general, birds)
    assert model.remote.models == (general, birds)
    model.use(Plan(subnet, hard=Ask(ALL, RemoteRef("birds"))))
    assert not caplog.text
    model.use(Plan(subnet, hard=Ask(ALL, RemoteRef("fish"))))
    assert "was made for fish" in caplog.text
    model.remote.connect(birds)
    assert model.remote.models == (birds,)


def test_models_that_no_plan_could_tell_apart_are_not_connected_together(model):
    one = RemoteModel(server=NOWHERE, model="big", privacy="inputs")
    with pytest.raises(UsageError, match="cannot be connected together"):
        model.remote.connect(one, RemoteModel(server="http://127.0.0.1:8", model="big", privacy="inputs"))
    with pytest.raises(UsageError, match="no model is given"):
        model.remote.connect()
    assert model.remote.models == ()


def test_a_pool_is_learned_with_one_server_alone(model, tiny_bundle):
    model.remote.connect(*(RemoteModel(server=NOWHERE, model=name, privacy="inputs") for name in ("a", "b")))
    with pytest.raises(UsageError, match="one server"):
        model.remote.pool(tiny_bundle.images, np.zeros(len(tiny_bundle.images), np.int64))
