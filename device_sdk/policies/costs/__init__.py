"""What plans are expected to cost, from answers to private samples and a cost model."""
