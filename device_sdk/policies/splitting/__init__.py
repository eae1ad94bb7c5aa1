"""Where to divide a network between a device and a server, and in how many bits (Auto-Split, KDD 2021). Pure.

``path_splits`` divides a subnet of a bundle by its measured blocks. The other modules solve Auto-Split's problem on any
graph of layers: ``problem`` states it, ``auto_split`` is Algorithm 1, ``label_search`` finds the least latency.
"""

from device_sdk.policies.splitting.path_splits import SplitCost as SplitCost
from device_sdk.policies.splitting.path_splits import best_split as best_split
from device_sdk.policies.splitting.path_splits import split_costs as split_costs
