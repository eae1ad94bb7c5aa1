"""The benchmarks: one module per published table or figure."""
