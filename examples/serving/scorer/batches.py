"""Joins requests: a call of the model takes all requests that came during the call before."""

import asyncio
from collections import Counter

import numpy as np

import hatch_lower

ROWS = 64  # most requests in a call: the largest batch of the exported model


def load():
    return hatch_lower.load("scorer", arrays="numpy")


class Batches:
    def __init__(self, load):
        self.load, self.model, self.loads = load, None, 0
        self.waiting, self.counts = asyncio.Queue(), Counter(requests=0, refused=0, calls=0)

    async def reload(self):
        # until the model is loaded, and in a call that has begun, requests run on the model before
        model = await asyncio.to_thread(self.load)
        self.model, self.loads = model, self.loads + 1

    async def answer(self, image):
        """Return status and answer for an image: its scores, and the number of the load whose model computed them."""
        future = asyncio.get_running_loop().create_future()
        self.waiting.put_nowait((image, future))
        return await future

    async def work(self):
        while True:
            first = await self.waiting.get()
            rows = [first, *(self.waiting.get_nowait() for _ in range(min(self.waiting.qsize(), ROWS - 1)))]
            model, loads = self.model, self.loads
            try:
                scores = await asyncio.to_thread(model, np.stack([image for image, _ in rows]))
                answers = [(200, {"scores": row.tolist(), "loads": loads}) for row in scores]
            except Exception as error:
                answers = [(500, {"error": str(error)})] * len(rows)
            self.counts["calls"] += 1
            for (_, future), answer in zip(rows, answers, strict=True):
                if not future.done():  # done: the client has gone
                    future.set_result(answer)
