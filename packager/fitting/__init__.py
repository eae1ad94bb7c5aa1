"""Initialisation of added blocks: the best of copies, recalibrated copies, and closed-form fits.

``features`` holds the teacher's features in bounded memory; ``last_map`` finds the layer to fit and ``refit`` fits it;
``candidates`` lists the initialisations of a block; ``front`` finds blocks far from the Pareto front; ``fit`` combines
them (docs/adr/0027-closed-form-start.md).
"""

from packager.fitting.fit import Fit, applied, fit, fit_once, fitted

__all__ = ["Fit", "applied", "fit", "fit_once", "fitted"]
