"""``cascade``: plans with a second path for hard samples, against single subnets and a cascade made by hand."""
