"""Reads what an attempt of an execution left from a bucket, as docs/formats/execution-output.md has it:

    read.py ENDPOINT BUCKET PREFIX KEY

with the key that `r execution show --json` prints. It prints JSON.
"""

import json
import sys

import boto3
import cbor2

NAMES = {1: "stdout", 2: "stderr", 3: "result", 4: "stdout_truncated", 5: "stderr_truncated", 6: "result_truncated"}

endpoint, bucket, prefix, key = sys.argv[1:]
s3 = boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1")
pages = s3.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
found = [o["Key"] for page in pages for o in page.get("Contents", []) if o["Key"].endswith("/" + key)]
if len(found) != 1:
    sys.exit(f"{len(found)} objects of {key}: {found}")
output = cbor2.loads(s3.get_object(Bucket=bucket, Key=found[0])["Body"].read())
print(json.dumps({NAMES[k]: v.decode() if isinstance(v, bytes) else v for k, v in output.items()}))
