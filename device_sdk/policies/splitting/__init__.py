"""Division of a network between a device and a server, and bits of its parts (Auto-Split, KDD 2021). Pure.

``path_splits`` divides a subnet of a bundle by its measured blocks, ``head_renditions`` chooses the renditions of the
device's part. Auto-Split's own problem, on a graph of layers, is solved in ``benchmarks/auto_split``.
"""

from device_sdk.policies.splitting.path_splits import SplitCost as SplitCost
from device_sdk.policies.splitting.path_splits import best_split as best_split
from device_sdk.policies.splitting.path_splits import split_costs as split_costs
