"""Carries out orders with boto3 and its defaults: client, transfer manager, presigner."""

import datetime
import os

import boto3
import orders
from boto3.s3.transfer import TransferConfig
from botocore.config import Config
from botocore.exceptions import ClientError

# for a custom endpoint the default is path style
named = Config(s3={"addressing_style": "virtual"}) if os.environ.get("E2E_VIRTUAL") else None
s3 = boto3.client("s3", config=named)
version4 = boto3.client("s3", config=Config(signature_version="s3v4"))


def refusal(error):
    if isinstance(error, ClientError):
        r = error.response
        return r.get("ResponseMetadata", {}).get("HTTPStatusCode", 0), r.get("Error", {}).get("Code", "")
    return 0, ""


def at(o):
    return {"Bucket": o["bucket"], "Key": o["key"]}


def put(o):
    extra = {
        "Metadata": o.get("meta"), "ContentType": o.get("type"), "ContentEncoding": o.get("encoding"),
        "CacheControl": o.get("cache"), "IfMatch": o.get("ifmatch"), "IfNoneMatch": o.get("ifnonematch"),
        "ChecksumAlgorithm": o.get("algo"),
    }
    if o.get("sum"):
        extra["Checksum" + o["algo"]] = o["sum"]
    with open(o["file"], "rb") as f:
        r = s3.put_object(**at(o), Body=f, **{k: v for k, v in extra.items() if v})
    return {"etag": r["ETag"]}


def described(r):
    sums = {a: r.get("Checksum" + a, "") for a in ("CRC32", "CRC32C", "SHA1", "SHA256", "CRC64NVME")}
    return {
        "size": r["ContentLength"], "etag": r["ETag"], "meta": r["Metadata"], "type": r.get("ContentType"),
        "encoding": r.get("ContentEncoding"), "cache": r.get("CacheControl"), "sums": sums,
    }


def moment(seconds):
    return datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc) if seconds else None


def get(o):
    extra = {
        "Range": o.get("range"), "IfMatch": o.get("ifmatch"), "IfNoneMatch": o.get("ifnonematch"),
        "IfModifiedSince": moment(o.get("ifmodified")), "IfUnmodifiedSince": moment(o.get("ifunmodified")),
    }
    r = s3.get_object(**at(o), **{k: v for k, v in extra.items() if v})
    with open(o["file"], "wb") as f:
        for piece in r["Body"].iter_chunks(1 << 20):
            f.write(piece)
    return described(r)


def upload(o):
    s3.upload_file(o["file"], o["bucket"], o["key"])


def download(o):
    s3.download_file(o["bucket"], o["key"], o["file"])


def copy(o):
    source = {"Bucket": o["frombucket"], "Key": o["fromkey"]}
    if o.get("part"):
        config = TransferConfig(multipart_threshold=o["part"], multipart_chunksize=o["part"])
        s3.copy(source, o["bucket"], o["key"], Config=config)
    elif o.get("meta"):
        s3.copy_object(**at(o), CopySource=source, MetadataDirective="REPLACE", Metadata=o["meta"],
                       ContentType=o["type"])
    else:
        s3.copy_object(**at(o), CopySource=source)


def listing(o):
    extra = {"Prefix": o.get("prefix"), "Delimiter": o.get("delimiter")}
    items, prefixes = [], []
    pages = s3.get_paginator("list_objects_v2")
    for page in pages.paginate(Bucket=o["bucket"], **{k: v for k, v in extra.items() if v}):
        items += [{"key": c["Key"], "size": c["Size"], "etag": c["ETag"]} for c in page.get("Contents", [])]
        prefixes += [p["Prefix"] for p in page.get("CommonPrefixes", [])]
    return {"items": items, "prefixes": prefixes}


def delete_many(o):
    r = s3.delete_objects(Bucket=o["bucket"], Delete={"Objects": [{"Key": k} for k in o["keys"]]})
    if r.get("Errors"):
        raise RuntimeError(r["Errors"])


def presign(o):
    name = "get_object" if o["op"] == "presignget" else "put_object"
    signer = version4 if o.get("way") == "v4" else s3
    return {"url": signer.generate_presigned_url(name, Params=at(o), ExpiresIn=3600)}


def start(o):
    """Begins an upload and sends its first part."""
    upload_id = s3.create_multipart_upload(**at(o))["UploadId"]
    with open(o["file"], "rb") as f:
        s3.upload_part(**at(o), UploadId=upload_id, PartNumber=1, Body=f)
    return {"id": upload_id}


def uploads(o):
    found = []
    for page in s3.get_paginator("list_multipart_uploads").paginate(Bucket=o["bucket"]):
        found += [{"key": u["Key"], "id": u["UploadId"]} for u in page.get("Uploads", [])]
    return {"uploads": found}


def none(_):
    return None


orders.serve({
    "mkbucket": lambda o: none(s3.create_bucket(Bucket=o["bucket"])),
    "rmbucket": lambda o: none(s3.delete_bucket(Bucket=o["bucket"])),
    "put": put, "get": get, "head": lambda o: described(s3.head_object(**at(o), ChecksumMode="ENABLED")),
    "upload": upload, "download": download, "copy": copy, "list": listing,
    "delete": lambda o: none(s3.delete_object(**at(o))), "deletemany": delete_many,
    "presignget": presign, "presignput": presign, "mpstart": start, "mplist": uploads,
    "mpabort": lambda o: none(s3.abort_multipart_upload(**at(o), UploadId=o["id"])),
}, refusal)
