"""Hard samples travel: the Open Inference Protocol, its client, and when to give up on a server."""
