"""``sure``: adaptation against the ladder, over seeds, on an idle and on a busy machine."""
