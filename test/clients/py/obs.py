"""Carries out orders with obstore and its defaults, as far as it has the operation."""

import datetime
import os
import re
from pathlib import Path

import obstore
import orders
from obstore.store import S3Store

options = {}
endpoint = os.environ["AWS_ENDPOINT_URL"]
if endpoint.startswith("http://"):
    options["allow_http"] = True
if os.environ.get("AWS_CA_BUNDLE"):
    options["root_certificate"] = Path(os.environ["AWS_CA_BUNDLE"]).read_text()
if os.environ.get("HTTPS_PROXY"):
    options["proxy_url"] = os.environ["HTTPS_PROXY"]


def store(bucket, **more):
    if os.environ.get("E2E_VIRTUAL"):
        # this library takes the endpoint of the bucket in that style
        scheme, host = endpoint.split("://")
        return S3Store(bucket, endpoint=f"{scheme}://{bucket}.{host}", virtual_hosted_style_request=True,
                       client_options=options, **more)
    return S3Store(bucket, endpoint=endpoint, client_options=options, **more)


def refusal(error):
    # the library has classes for some answers and text for the others
    text = str(error)
    found = re.search(r"<Code>(\w+)</Code>", text)
    code = found.group(1) if found else ""
    status = re.search(r"\b([345]\d\d) [A-Z][a-z]", text)
    known = {"NotFoundError": 404, "FileNotFoundError": 404, "AlreadyExistsError": 412,
             "PreconditionError": 412, "NotModifiedError": 304}
    return known.get(type(error).__name__, int(status.group(1)) if status else 0), code


def attributes(o):
    a = dict(o.get("meta") or {})
    if o.get("type"):
        a["Content-Type"] = o["type"]
    if o.get("encoding"):
        a["Content-Encoding"] = o["encoding"]
    if o.get("cache"):
        a["Cache-Control"] = o["cache"]
    return a or None


def put(o):
    more = {}
    if o.get("sum"):
        raise orders.Cannot("takes no checksum from its caller")
    if o.get("algo"):
        if o["algo"] != "SHA256":
            raise orders.Cannot("the only checksum is SHA256")
        more["checksum_algorithm"] = "SHA256"
    mode = None
    if o.get("ifnonematch"):
        mode = "create"
    if o.get("ifmatch"):
        mode = {"e_tag": o["ifmatch"]}
    r = obstore.put(store(o["bucket"], **more), o["key"], Path(o["file"]), attributes=attributes(o), mode=mode,
                    use_multipart=False)
    return {"etag": r["e_tag"]}


def span(text):
    first, last = text.removeprefix("bytes=").split("-")
    if first == "":
        return {"suffix": int(last)}
    if last == "":
        return {"offset": int(first)}
    return (int(first), int(last) + 1)


def moment(seconds):
    return datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc) if seconds else None


def get(o):
    opts = {
        "if_match": o.get("ifmatch"), "if_none_match": o.get("ifnonematch"),
        "if_modified_since": moment(o.get("ifmodified")), "if_unmodified_since": moment(o.get("ifunmodified")),
        "range": span(o["range"]) if o.get("range") else None,
    }
    r = obstore.get(store(o["bucket"]), o["key"], options={k: v for k, v in opts.items() if v})
    plain = dict(r.attributes)
    size = 0
    with open(o["file"], "wb") as f:
        for piece in r.stream():
            size += f.write(piece)
    known = {"Content-Type", "Content-Encoding", "Cache-Control", "Content-Disposition", "Content-Language"}
    return {
        "size": size, "etag": r.meta["e_tag"], "type": plain.get("Content-Type"),
        "encoding": plain.get("Content-Encoding"), "cache": plain.get("Cache-Control"),
        "meta": {k: v for k, v in plain.items() if k not in known},
    }


def head(o):
    m = obstore.head(store(o["bucket"]), o["key"])
    return {"size": m["size"], "etag": m["e_tag"]}


def upload(o):
    obstore.put(store(o["bucket"]), o["key"], Path(o["file"]))


def copy(o):
    if o.get("part") or o.get("meta") or o["bucket"] != o["frombucket"]:
        raise orders.Cannot("copies whole objects inside a bucket, as they are")
    obstore.copy(store(o["bucket"]), o["fromkey"], o["key"])


def listing(o):
    s = store(o["bucket"])
    prefixes, found = [], []
    if o.get("delimiter"):
        if o["delimiter"] != "/":
            raise orders.Cannot("the only delimiter of a listing is /")
        r = obstore.list_with_delimiter(s, o.get("prefix"))
        prefixes, found = [p + "/" for p in r["common_prefixes"]], r["objects"]
    else:
        for page in obstore.list(s, o.get("prefix")):
            found += page
    return {
        "prefixes": prefixes,
        "items": [{"key": m["path"], "size": m["size"], "etag": m["e_tag"]} for m in found],
    }


def delete(o):
    obstore.delete(store(o["bucket"]), o.get("keys") or o["key"])


def presign(o):
    method = "GET" if o["op"] == "presignget" else "PUT"
    return {"url": obstore.sign(store(o["bucket"]), method, o["key"], datetime.timedelta(hours=1))}


orders.serve({
    "put": put, "get": get, "head": head, "upload": upload, "download": get, "copy": copy, "list": listing,
    "delete": delete, "deletemany": delete, "presignget": presign, "presignput": presign,
}, refusal)
