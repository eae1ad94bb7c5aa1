from __future__ import annotations

from xml.etree import ElementTree

from device_sdk.commands.plan_map import COLOURS, described_cells, map_drawing, print_map
from device_sdk.files.drawing import Text, write_drawing
from device_sdk.policies.measured_splits.region import Cell
from device_sdk.policies.planning.plan_region import PlannedWay
from device_sdk.policies.splitting.path_splits import SplitCost
from device_sdk.supernet.cost import PlanCost
from device_sdk.supernet.plan import Ask, Edge, MaxConfidence, Plan, RemoteRef, Split, Subnet

SERVER = RemoteRef("big")
EDGES = (Edge("o0"), Edge("o1"))
DEVICE = SplitCost(2, 10.0, 0.0, 0.0, 0, head=EDGES)
SPLIT = SplitCost(1, 2.0, 5.0, 1.0, 900, EDGES[1:], (4,), head=EDGES[:1], per_channel=True, compress=True)
CELLS = (
    Cell(3.0, 1.0, 0.0, {"device": DEVICE}),
    Cell(3.0, 1.0, 0.03, {"device": DEVICE, "split": SPLIT}),
)


def test_each_allowed_drop_has_a_panel_of_its_own(tmp_path):
    write_drawing(tmp_path / "map.svg", map_drawing(CELLS))
    root = ElementTree.parse(tmp_path / "map.svg").getroot()
    texts = [text.text for text in root.iter("{http://www.w3.org/2000/svg}text")]
    assert [text for text in texts if "at a loss" in text] == [
        "at a loss of at most 0 points",
        "at a loss of at most 3 points",
    ]
    assert any("−20 %" in text and "in 4 bits, per channel, deflated" in text for text in texts)
    fills = [box.get("fill") for box in root.iter("{http://www.w3.org/2000/svg}rect")]
    assert (fills.count(COLOURS["device"]), fills.count(COLOURS["split"])) == (2, 2), "the legend's and one each"
    heights = [float(text.get("y")) for text in root.iter("{http://www.w3.org/2000/svg}text")]
    assert max(heights) <= float(root.get("height"))


def test_the_table_and_the_json_name_the_drop_and_the_coding(capsys):
    print_map(CELLS)
    shown = capsys.readouterr().out
    assert shown.index("at most 0 points") < shown.index("at most 3 points")
    assert "split 8 ms" in shown
    [exact, coded] = described_cells(CELLS)
    assert (exact["kind"], exact["saving"], exact["compress"]) == ("device", None, False)
    assert (coded["bits"], coded["per_channel"], coded["compress"]) == ([4], True, True)


def planned(latency_ms, plan, **shares):
    cost = PlanCost(
        accuracy=0.9, latency_ms=latency_ms, p95_latency_ms=latency_ms, bytes_sent=0.0, peak_bytes=1, **shares
    )
    return PlannedWay(plan, cost)


def test_plans_of_all_kinds_say_which_samples_go_on(capsys):
    own = Plan(Subnet(EDGES))
    asking = planned(5.0, Plan(own.subnet, hard=Ask(MaxConfidence(0.5), SERVER)), share_asked=0.25)
    crossing = planned(9.0, Plan(own.subnet, split=Split(1, (8,), EDGES[1:], SERVER)))
    cells = (
        Cell(3.0, 1.0, 0.01, {"device": planned(10.0, own), "ask": asking}),
        Cell(9.0, 1.0, 0.01, {"device": planned(10.0, own), "split": crossing}),
    )
    drawing = map_drawing(cells)
    said = [shape.text for shape in drawing.shapes if isinstance(shape, Text)]
    assert "for the connected server" in said[0]
    assert "−50 %, 25 % asked" in said
    assert "−10 %, cut 1" in said
    assert {"ask", "split"} <= set(said)
    assert "device" not in said, "the legend has the kinds that are fastest somewhere"
    [first, second] = described_cells(cells)
    assert (first["kind"], first["plan"], first["share_asked"]) == ("ask", "ask", 0.25)
    assert (second["position"], second["share_asked"]) == (1, 0.0)
    print_map(cells)
    assert "ask 5 ms, −50 %" in capsys.readouterr().out
