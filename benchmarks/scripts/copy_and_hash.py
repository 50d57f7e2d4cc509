"""`copy_and_hash.py SOURCE TARGET`: read a file once, write it, and hash it in a second thread meanwhile; seconds."""

from __future__ import annotations

import hashlib
import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

PIECE = 1 << 20

source, target = map(Path, sys.argv[1:])
begin = time.perf_counter()
digest = hashlib.sha256()
with source.open("rb", buffering=0) as old, target.open("wb", buffering=0) as new, ThreadPoolExecutor(1) as pool:
    pieces = [memoryview(bytearray(PIECE)) for _ in range(2)]
    hashing = None
    while count := old.readinto(pieces[0]):
        if hashing is not None:
            hashing.result()
        hashing = pool.submit(digest.update, pieces[0][:count])
        new.write(pieces[0][:count])
        pieces.reverse()
digest.hexdigest()
print(json.dumps({"seconds": time.perf_counter() - begin}))
