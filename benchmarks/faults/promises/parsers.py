"""S3."""

PARSERS = ()
