"""A TCP balancer before several servers, as nginx is: a connection goes to a random one that answers.

Started as ``python -m benchmarks.fleet.balancer PORT…`` with the servers' ports; prints its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import sys

_READ_BYTES = 65_536
_HOST = "127.0.0.1"


async def _pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(_READ_BYTES):
            writer.write(data)
            await writer.drain()
    with contextlib.suppress(OSError):
        writer.close()


async def _serve(ports: list[int]) -> None:
    draw = random.Random(0)

    async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for port in draw.sample(ports, len(ports)):
            try:
                back_reader, back_writer = await asyncio.open_connection(_HOST, port)
            except OSError:
                continue
            await asyncio.gather(_pipe(reader, back_writer), _pipe(back_reader, writer))
            return
        writer.close()

    server = await asyncio.start_server(connect, _HOST, 0, backlog=512)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_serve([int(port) for port in sys.argv[1:]]))
