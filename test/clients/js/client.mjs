// Carries out orders with the AWS SDK for JavaScript v3 and its defaults: client, lib-storage and
// presigner. One order per line on standard input, one answer per line on standard output.
import { createReadStream, createWriteStream, statSync } from "node:fs";
import { createInterface } from "node:readline";
import { pipeline } from "node:stream/promises";
import http from "node:http";
import https from "node:https";
import * as sdk from "@aws-sdk/client-s3";
import { Upload } from "@aws-sdk/lib-storage";
import { getSignedUrl } from "@aws-sdk/s3-request-presigner";

const options = {};
if (process.env.E2E_VIRTUAL) {
  // the names below the test domain are in no DNS: every name is this machine
  const lookup = (_, o, done) => (o.all ? done(null, [{ address: "127.0.0.1", family: 4 }]) : done(null, "127.0.0.1", 4));
  options.requestHandler = { httpAgent: new http.Agent({ lookup }), httpsAgent: new https.Agent({ lookup }) };
}
const s3 = new sdk.S3Client(options);

class Cannot extends Error {}

const at = (o) => ({ Bucket: o.bucket, Key: o.key });
const moment = (seconds) => (seconds ? new Date(seconds * 1000) : undefined);
const source = (o) => encodeURIComponent(o.frombucket) + "/" + encodeURIComponent(o.fromkey);
const algorithms = ["CRC32", "CRC32C", "SHA1", "SHA256", "CRC64NVME"];

function described(r) {
  const sums = Object.fromEntries(algorithms.map((a) => [a, r["Checksum" + a] ?? ""]));
  return {
    size: r.ContentLength, etag: r.ETag, meta: r.Metadata, type: r.ContentType, encoding: r.ContentEncoding,
    cache: r.CacheControl, sums,
  };
}

async function put(o) {
  const input = {
    ...at(o), Body: createReadStream(o.file), ContentLength: statSync(o.file).size, Metadata: o.meta,
    ContentType: o.type, ContentEncoding: o.encoding, CacheControl: o.cache, IfMatch: o.ifmatch,
    IfNoneMatch: o.ifnonematch, ChecksumAlgorithm: o.algo,
  };
  if (o.sum) input["Checksum" + o.algo] = o.sum;
  const r = await s3.send(new sdk.PutObjectCommand(input));
  return { etag: r.ETag };
}

async function get(o) {
  const r = await s3.send(new sdk.GetObjectCommand({
    ...at(o), Range: o.range, IfMatch: o.ifmatch, IfNoneMatch: o.ifnonematch,
    IfModifiedSince: moment(o.ifmodified), IfUnmodifiedSince: moment(o.ifunmodified),
  }));
  await pipeline(r.Body, createWriteStream(o.file));
  return described(r);
}

async function upload(o) {
  await new Upload({ client: s3, params: { ...at(o), Body: createReadStream(o.file) } }).done();
}

// by parts when a part size is given: the SDK has no manager for that
async function copy(o) {
  if (!o.part) {
    const replace = o.meta ? { MetadataDirective: "REPLACE", Metadata: o.meta, ContentType: o.type } : {};
    await s3.send(new sdk.CopyObjectCommand({ ...at(o), CopySource: source(o), ...replace }));
    return;
  }
  const head = await s3.send(new sdk.HeadObjectCommand({ Bucket: o.frombucket, Key: o.fromkey }));
  const { UploadId } = await s3.send(new sdk.CreateMultipartUploadCommand(at(o)));
  const parts = [];
  for (let from = 0; from < head.ContentLength; from += o.part) {
    const to = Math.min(from + o.part, head.ContentLength) - 1;
    const PartNumber = parts.length + 1;
    const r = await s3.send(new sdk.UploadPartCopyCommand({
      ...at(o), UploadId, PartNumber, CopySource: source(o), CopySourceRange: `bytes=${from}-${to}`,
    }));
    const { LastModified, ...sums } = r.CopyPartResult;
    parts.push({ PartNumber, ...sums });
  }
  await s3.send(new sdk.CompleteMultipartUploadCommand({ ...at(o), UploadId, MultipartUpload: { Parts: parts } }));
}

async function list(o) {
  const items = [];
  const prefixes = [];
  const input = { Bucket: o.bucket, Prefix: o.prefix, Delimiter: o.delimiter };
  for await (const page of sdk.paginateListObjectsV2({ client: s3 }, input)) {
    for (const c of page.Contents ?? []) items.push({ key: c.Key, size: c.Size, etag: c.ETag });
    for (const p of page.CommonPrefixes ?? []) prefixes.push(p.Prefix);
  }
  return { items, prefixes };
}

async function deleteMany(o) {
  const r = await s3.send(new sdk.DeleteObjectsCommand({
    Bucket: o.bucket, Delete: { Objects: o.keys.map((Key) => ({ Key })) },
  }));
  if (r.Errors?.length) throw new Error(JSON.stringify(r.Errors));
}

async function presign(o) {
  const command = o.op === "presignget" ? new sdk.GetObjectCommand(at(o)) : new sdk.PutObjectCommand(at(o));
  return { url: await getSignedUrl(s3, command, { expiresIn: 3600 }) };
}

// begins an upload and sends its first part
async function start(o) {
  const { UploadId } = await s3.send(new sdk.CreateMultipartUploadCommand(at(o)));
  await s3.send(new sdk.UploadPartCommand({
    ...at(o), UploadId, PartNumber: 1, Body: createReadStream(o.file), ContentLength: statSync(o.file).size,
  }));
  return { id: UploadId };
}

async function uploads(o) {
  const r = await s3.send(new sdk.ListMultipartUploadsCommand({ Bucket: o.bucket }));
  return { uploads: (r.Uploads ?? []).map((u) => ({ key: u.Key, id: u.UploadId })) };
}

const quiet = (make) => async (o) => void (await s3.send(make(o)));

const handlers = {
  mkbucket: quiet((o) => new sdk.CreateBucketCommand({ Bucket: o.bucket })),
  rmbucket: quiet((o) => new sdk.DeleteBucketCommand({ Bucket: o.bucket })),
  put, get, upload, copy, list,
  head: async (o) => described(await s3.send(new sdk.HeadObjectCommand({ ...at(o), ChecksumMode: "ENABLED" }))),
  download: get,
  delete: quiet((o) => new sdk.DeleteObjectCommand(at(o))),
  deletemany: deleteMany, presignget: presign, presignput: presign, mpstart: start, mplist: uploads,
  mpabort: quiet((o) => new sdk.AbortMultipartUploadCommand({ ...at(o), UploadId: o.id })),
};

for await (const line of createInterface({ input: process.stdin })) {
  const o = JSON.parse(line);
  let answer;
  try {
    if (!handlers[o.op]) throw new Cannot("no operation " + o.op);
    answer = (await handlers[o.op](o)) ?? {};
  } catch (e) {
    answer = e instanceof Cannot
      ? { cannot: e.message }
      : { error: `${e.name}: ${e.message}`, status: e.$metadata?.httpStatusCode ?? 0, code: e.Code ?? e.name };
  }
  process.stdout.write(JSON.stringify(answer) + "\n");
}
