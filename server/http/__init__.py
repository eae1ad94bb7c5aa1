"""HTTP below the routes: connections, threads, requests and replies."""
