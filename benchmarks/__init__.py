"""The measurements: one file per table or figure that the project claims."""
