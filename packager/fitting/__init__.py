"""Initialisation of added blocks: the best of copies, recalibrated copies, and closed-form fits.

``features`` holds the teacher's features in bounded memory; ``last_map`` finds the layer to fit, ``before_norm`` that
in front of a layer norm, and ``refit`` fits it; ``channels`` says which channels of a transformer a narrow block keeps;
``candidates`` lists the initialisations of a block; ``fit`` combines them, and drops blocks far from the Pareto front
(docs/adr/0027-closed-form-start.md).
"""

from packager.fitting.fit import Fit, applied, fit, fit_once

__all__ = ["Fit", "applied", "fit", "fit_once"]
