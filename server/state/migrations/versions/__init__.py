"""A file for each change of the schema. Released ones never change."""
