"""Tools that break things, for the promises and for tests. They know no package of this repository."""
