"""The 18 promises R1–R10 and S1–S8: each tried with real faults, in a process of its own."""
