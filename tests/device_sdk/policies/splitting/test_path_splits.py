from __future__ import annotations

import msgspec
import pytest

from device_sdk.errors import UsageError
from device_sdk.offload.packing import packet_bytes
from device_sdk.policies.splitting import best_split, split_costs
from device_sdk.policies.splitting.head_renditions import Head
from device_sdk.policies.splitting.path_splits import Handling, JpegCoding
from device_sdk.supernet.cost import Uplink
from device_sdk.supernet.plan import Edge, Subnet
from tests.device_sdk.policies.splitting.codings import coded


def costs(supernet, uniform_costs, *, mbps, server_scale=1.0, subnet=None, **changes):
    return split_costs(
        supernet,
        subnet or supernet.original,
        device=uniform_costs(supernet),
        server=uniform_costs(supernet, scale=server_scale),
        uplink=Uplink(mbps, **changes),
    )


def test_every_cut_point_of_the_path_is_a_way_to_split(elastic_supernet, uniform_costs):
    supernet = elastic_supernet(5)
    assert [cost.position for cost in costs(supernet, uniform_costs, mbps=3)] == [0, 1, 2, 3, 4, 5]
    merged = Subnet((Edge("o0"), Edge("m1_4"), Edge("o4")))
    found = costs(supernet, uniform_costs, mbps=3, subnet=merged)
    assert [cost.position for cost in found] == [0, 1, 4, 5]


def test_the_parts_add_up(elastic_supernet, uniform_costs):
    supernet = elastic_supernet(4)
    cost = costs(supernet, uniform_costs, mbps=8, server_scale=0.1, round_trip_ms=2.0)[1]
    assert cost.device_ms == pytest.approx(1.0)
    assert cost.server_ms == pytest.approx(0.3)
    assert cost.bytes_sent == packet_bytes(supernet.cut_points[1], supernet.original.edges[1:], batch=1)
    assert cost.transfer_ms == pytest.approx(2.0 + cost.bytes_sent / 1000)  # 8 Mbit/s are 1000 bytes per millisecond
    assert cost.latency_ms == pytest.approx(1.3 + cost.transfer_ms)


def test_on_the_device_nothing_is_sent(elastic_supernet, uniform_costs):
    last = costs(elastic_supernet(3), uniform_costs, mbps=1)[-1]
    assert (last.bytes_sent, last.transfer_ms, last.server_ms) == (0, 0.0, 0.0)
    assert last.device_ms == pytest.approx(3.0)


def test_a_slow_line_keeps_everything_here_and_a_quick_one_to_a_quick_server_nothing(elastic_supernet, uniform_costs):
    supernet = elastic_supernet(4)
    assert best_split(costs(supernet, uniform_costs, mbps=0.01)).position == 4
    assert best_split(costs(supernet, uniform_costs, mbps=1000, server_scale=0.01)).position == 0


def test_of_equals_the_one_that_sends_least_is_taken(elastic_supernet, uniform_costs):
    supernet = elastic_supernet(2)
    found = costs(supernet, uniform_costs, mbps=1e12)
    assert best_split(found).position == 2


def test_what_cannot_travel_is_not_cut(build_supernet, uniform_costs):
    from device_sdk.supernet.supernet import Supernet

    plain = build_supernet(3)
    cuts = list(plain.cut_points)
    integers = tuple(msgspec.structs.replace(spec, dtype="int64") for spec in cuts[1].tensors)
    cuts[1] = msgspec.structs.replace(cuts[1], tensors=integers)
    supernet = Supernet(cuts, plain.blocks)
    assert [cost.position for cost in costs(supernet, uniform_costs, mbps=3)] == [0, 2, 3]


@pytest.mark.parametrize(("mbps", "round_trip_ms"), [(0, 0), (-1, 0), (float("nan"), 0), (3, -1)])
def test_an_uplink_of_nothing_is_refused(mbps, round_trip_ms):
    with pytest.raises(UsageError):
        Uplink(mbps, round_trip_ms)


def test_the_tail_runs_in_the_original_renditions_where_the_server_has_them(build_supernet, uniform_costs):
    supernet = build_supernet(3, int8=("o0", "o1", "o2"))
    coarse = Subnet(tuple(Edge(edge.block, "int8") for edge in supernet.original.edges))
    whole = uniform_costs(supernet)
    lacking = msgspec.structs.replace(
        whole, edge_costs={edge: cost for edge, cost in whole.edge_costs.items() if edge.rendition == "int8"}
    )
    for server, names in ((whole, {"fp32"}), (lacking, {"int8"})):
        found = split_costs(supernet, coarse, device=whole, server=server, uplink=Uplink(3.0))
        assert {edge.rendition for cost in found for edge in cost.tail} == names
        assert {edge.rendition for cost in found for edge in cost.head} == {"int8"}


def test_every_head_is_offered_at_its_position_in_every_width(elastic_supernet, uniform_costs):
    supernet = elastic_supernet(2)
    own = supernet.original.edges
    heads = [[Head()], [Head(own[:1], 3.0, 5, 7, 0.5), Head(own[:1], 1.0)], [Head(own, 4.0)]]
    found = split_costs(
        supernet,
        supernet.original,
        device=uniform_costs(supernet),
        server=uniform_costs(supernet),
        uplink=Uplink(3.0),
        widths=(8, 2),
        heads=heads,
        coding=lambda position, bits, per_channel: None if per_channel else coded(error=1 / bits),
    )
    assert [(cost.position, cost.device_ms, cost.bits) for cost in found] == [
        *((0, 0.0, bits) for bits in ((8,), (2,))),
        *((1, 3.0, bits) for bits in ((8,), (2,))),
        *((1, 1.0, bits) for bits in ((8,), (2,))),
        (2, 4.0, ()),
    ]
    assert (found[3].stored_bytes, found[3].device_bytes, found[3].error) == (5, 7, 1.0)


@pytest.mark.parametrize("offset_ms", [-0.9, 0.6])
def test_both_parts_share_the_offset_of_whole_paths(elastic_supernet, uniform_costs, offset_ms):
    supernet = elastic_supernet(4)
    model = msgspec.structs.replace(uniform_costs(supernet), offset_ms=offset_ms)
    found = split_costs(supernet, supernet.original, device=model, server=model, uplink=Uplink(3))
    for cost in found:
        assert cost.device_ms + cost.server_ms == pytest.approx(4 + offset_ms)
        assert cost.device_ms == pytest.approx(cost.position / 4 * (4 + offset_ms))


def test_the_input_as_jpeg_comes_first_and_runs_the_full_model_at_the_server(elastic_supernet, uniform_costs):
    supernet, jpeg = elastic_supernet(4), JpegCoding(1_000, encoding_ms=0.5, decoding_ms=0.25)
    both = {"device": uniform_costs(supernet), "server": uniform_costs(supernet, scale=0.1)}
    merged = Subnet((Edge("o0"), Edge("m1_3")))
    found = split_costs(supernet, merged, **both, uplink=Uplink(8), overhead_bytes=100, jpeg=jpeg)
    assert [(cost.sends, cost.position) for cost in found[:2]] == [("jpeg", 0), ("activations", 0)]
    assert found[0].tail == supernet.original.edges
    assert found[0].latency_ms == pytest.approx(0.5 + 1.1 + 0.25 + 0.4)
    unseen = split_costs(supernet, merged, **both, uplink=Uplink(8), jpeg=jpeg, sends_input=False)
    assert all(cost.sends == "activations" for cost in unseen)


def test_the_input_as_pixels_follows_its_jpeg_and_is_coded_on_the_slow_device(elastic_supernet, uniform_costs):
    supernet = elastic_supernet(4)
    jpeg = JpegCoding(1_000, encoding_ms=0.5, decoding_ms=0.25, pixels=JpegCoding(4_900, 0.01, 0.02))
    both = {"device": uniform_costs(supernet), "server": uniform_costs(supernet, scale=0.1)}
    found = split_costs(supernet, supernet.original, **both, uplink=Uplink(8), overhead_bytes=100, jpeg=jpeg.slowed(10))
    assert [cost.sends for cost in found[:3]] == ["jpeg", "images", "activations"]
    assert found[1].latency_ms == pytest.approx(0.1 + 5.0 + 0.02 + 0.4)


def sent_with(supernet, uniform_costs, coding, *, mbps, factor=1.0, widths=(8, 2)):
    """Ways at cut point 1 of a network of two blocks."""
    costs = uniform_costs(supernet)
    values = sum(spec.size for spec in supernet.cut_points[1].tensors)
    handling = Handling(packing_ms_per_value=0.25 / values).slowed(factor)
    server, uplink = costs, Uplink(mbps)
    found = split_costs(
        supernet,
        supernet.original,
        device=costs,
        server=server,
        uplink=uplink,
        widths=widths,
        handling=handling,
        coding=coding,
    )
    return [cost for cost in found if cost.position == 1]


def test_packets_are_deflated_where_that_is_faster(elastic_supernet, uniform_costs):
    supernet = elastic_supernet(2)

    def coding(position, bits, per_channel):
        return None if per_channel else coded(saved_bytes=10.0, deflating_ms=0.05, packing_factor=2.0)

    [plain, *_], [packed, *_] = (sent_with(supernet, uniform_costs, coding, mbps=mbps) for mbps in (100.0, 0.1))
    assert (plain.compress, packed.compress) == (False, True)
    assert plain.bytes_sent - packed.bytes_sent == 10
    assert packed.transfer_ms == pytest.approx(Uplink(0.1).transfer_ms(packed.bytes_sent))
    assert (plain.packing_ms, packed.packing_ms) == pytest.approx((0.5, 0.55))
    [slow, *_] = sent_with(supernet, uniform_costs, coding, mbps=0.1, factor=40.0)
    assert not slow.compress, "a slow device deflates for longer than it saves on the line"
    assert slow.packing_ms == pytest.approx(20.0)


def test_ranges_per_channel_are_a_way_of_their_own_below_eight_bits(elastic_supernet, uniform_costs):
    supernet = elastic_supernet(2)
    found = sent_with(supernet, uniform_costs, lambda position, bits, each: coded(error=1.0 - 0.5 * each), mbps=3.0)
    has_channels = len(supernet.cut_points[1].tensors[0].shape) > 1
    expected = [((8,), False), ((2,), False)] + [((2,), True)] * has_channels
    assert [(cost.bits, cost.per_channel) for cost in found] == expected
    assert all(cost.error == 1.0 - 0.5 * cost.per_channel for cost in found)
