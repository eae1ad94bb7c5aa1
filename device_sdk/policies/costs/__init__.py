"""Expected costs of plans, from answers to private samples and a cost model."""
