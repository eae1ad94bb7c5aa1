"""Where added blocks start from: the best of copies, copies with statistics of their place, and closed-form fits.

``features`` holds the teacher's features in bounded memory; ``last_map`` finds the layer that can be fitted and
``refit`` fits it; ``candidates`` lists what a block can start as; ``front`` says which blocks a budget could want;
``fit`` puts them together (docs/adr/0027-closed-form-start.md).
"""

from packager.fitting.fit import Fit, applied, fit, fit_once, fitted

__all__ = ["Fit", "applied", "fit", "fit_once", "fitted"]
