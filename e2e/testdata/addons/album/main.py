"""Keeps what is posted to it as objects of the bucket that the variables of its addon name."""

import io
import os
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import boto3
from boto3.s3.transfer import TransferConfig
from botocore.config import Config

bucket = os.environ["BUCKET_NAME"]


def client(style):
    # AWS_REGION is what the SDKs of other languages read.
    # The time-outs are for connections to a sandbox that was killed, which do not end by themselves.
    config = Config(s3={"addressing_style": style}, connect_timeout=2, read_timeout=5, retries={"total_max_attempts": 5, "mode": "standard"})
    return boto3.client("s3", region_name=os.environ["AWS_REGION"], config=config)


# With the bucket in the path, and in the name of the host.
path, virtual = client("path"), client("virtual")


def listing():
    return ",".join(sorted(o["Key"] for o in path.list_objects_v2(Bucket=bucket).get("Contents", [])))


def multipart():
    parts = TransferConfig(multipart_threshold=5 << 20, multipart_chunksize=5 << 20)
    virtual.upload_fileobj(io.BytesIO(b"z" * (12 << 20)), bucket, "multipart", Config=parts)
    got = path.get_object(Bucket=bucket, Key="multipart")
    return f"{len(got['Body'].read())} bytes {got['ETag']}"


def presigned():
    with urllib.request.urlopen(virtual.generate_presigned_url("get_object", {"Bucket": bucket, "Key": "first"})) as got:
        return got.read().decode()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def answer(self, make):
        try:
            code, body = 200, make()
        except Exception as e:  # the test reads why
            code, body = 500, repr(e)
        self.send_response(code)
        self.send_header("Content-Length", str(len(body.encode())))
        self.end_headers()
        self.wfile.write(body.encode())

    def do_GET(self):
        pages = {"/": listing, "/multipart": multipart, "/presigned": presigned}
        self.answer(pages.get(self.path) or (lambda: path.get_object(Bucket=bucket, Key=self.path[1:])["Body"].read().decode()))

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        key = body.decode()
        self.answer(lambda: virtual.put_object(Bucket=bucket, Key=key, Body=body) and key)

    def log_message(self, *args):
        pass


ThreadingHTTPServer(("", int(os.environ["PORT"])), Handler).serve_forever()
