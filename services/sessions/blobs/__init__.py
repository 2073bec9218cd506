"""Where bytes lie: content-addressed stores that hold what rows name by its hash.

    store = await blobs.of(workspace_id)            # what the settings of the workspace choose
    blob = await store.put(chunks)                  # safe on disk, or in the bucket, when it returns
    async with tx: await hold(tx, store, blob); …   # then the row that names it, in that order
    async for chunk in store.open(blob.sha256): …

A blob is written before its row and removed after it: a crash in between leaves bytes that no
row names, which the sweep removes when their grace is over. The same bytes are kept once,
however many rows name them. `store/blob_references.py` knows which tables hold names.
"""

from services.sessions.blobs.base import Blob, BlobMissing, BlobStore, FileDamaged, StorageFull, Stored

__all__ = ["Blob", "BlobMissing", "BlobStore", "FileDamaged", "StorageFull", "Stored"]
