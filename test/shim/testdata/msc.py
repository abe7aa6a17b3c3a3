"""NVIDIA's multi-storage-client with its provider s3_cuobject: writes objects, reads them whole and in part, and compares.

Arguments: endpoint, bucket, directory for files. Prints "ok" and the payload bytes that it moved.
"""
import base64
import hashlib
import importlib.metadata
import os
import sys
import threading

from multistorageclient import StorageClient, StorageClientConfig
from multistorageclient.types import Range

CHUNK = 6 << 20
endpoint, bucket, directory = sys.argv[1:]
moved = 0


def same(got, want, what):
    if bytes(got) != bytes(want):
        raise AssertionError("%s: %d bytes differ from %d" % (what, len(got), len(want)))


def unchanged():
    """The installed files are those of the index: what pip noted when it installed them."""
    count = 0
    for f in importlib.metadata.distribution("multi-storage-client").files:
        if f.hash is None or f.suffix == ".pyc":  # Python writes these anew as it likes
            continue
        digest = hashlib.new(f.hash.mode, f.locate().read_bytes()).digest()
        same(base64.urlsafe_b64encode(digest).rstrip(b"="), f.hash.value.encode(), str(f))
        count += 1
    if count < 10:
        raise AssertionError("%d files of multi-storage-client" % count)


def content(size, seed):
    return hashlib.shake_256(b"%d %d" % (size, seed)).digest(size)


def client():
    options = {
        "base_path": bucket, "endpoint_url": endpoint, "region_name": "us-east-1",
        "s3": {"addressing_style": "path"}, "rdma": {"multipart_chunksize": CHUNK},
    }
    config = {"profiles": {"p": {"storage_provider": {"type": "s3_cuobject", "options": options}}}}
    return StorageClient(StorageClientConfig.from_dict(config, profile="p"))


unchanged()
c = client()
for size in (1, 1000, 3 << 20, 20 << 20):  # the last in four parts
    data = content(size, 0)
    c.write("k%d" % size, data)
    same(c.read("k%d" % size), data, "whole %d" % size)
    moved += 2 * size
    if size > 100:
        n = min(size - 20, 900_000)
        same(c.read("k%d" % size, byte_range=Range(7, n)), data[7:7 + n], "range of %d" % size)
        moved += n
c.write("empty", b"")
same(c.read("empty"), b"", "empty")

path = os.path.join(directory, "file")
with open(path, "wb") as f:
    f.write(content(8 << 20, 1))
c.upload_file("file", path)
c.download_file("file", path + "-back")
with open(path + "-back", "rb") as f:
    same(f.read(), content(8 << 20, 1), "file")
moved += 2 * (8 << 20)

failures = []


def work(number):
    try:
        for i in range(10):
            data = content(300_000, number * 100 + i)
            c.write("t%d-%d" % (number, i), data)
            same(c.read("t%d-%d" % (number, i)), data, "thread %d" % number)
    except Exception as e:  # in a thread it would be lost
        failures.append(e)


threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
for t in threads:
    t.start()
for t in threads:
    t.join()
if failures:
    raise failures[0]
moved += 8 * 10 * 2 * 300_000
print("ok", moved)
