"""``threads``: the chosen homes of a plan against every fixed number of threads, idle and busy."""
