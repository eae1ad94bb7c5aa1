"""Auto-Split as in the paper (KDD 2021), on a graph of layers with modelled hardware: what ``split-paper`` measures.

``problem`` states it, ``auto_split`` is Algorithm 1, ``label_search`` finds the least latency.
"""
