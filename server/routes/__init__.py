"""The routes of the server, one file each."""
