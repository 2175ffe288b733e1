"""Give pods of jobs the index that Kubernetes 1.20 does not: ``indexes.py CERTIFICATE KEY CA API PORT``.

An admission webhook, which does what the Job controller does from 1.22 on: a pod takes the least
index that no other pod of its job has.
"""

from __future__ import annotations

import base64
import json
import ssl
import sys
import threading
import time
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

INDEX = "batch.kubernetes.io/job-completion-index"
certificate, key, authority, api, port = sys.argv[1:]
client = ssl.create_default_context(cafile=authority)
client.load_cert_chain(certificate, key)
lock = threading.Lock()
given: dict[tuple[str, int], float] = {}
"""When an index was given of late: its pod may not be listed yet."""


def least_index(namespace: str, job: str) -> int:
    """Return the least index that no pod of a job has."""
    url = f"{api}/api/v1/namespaces/{namespace}/pods?labelSelector=job-name={job}"
    with urllib.request.urlopen(url, context=client) as answer:
        pods = json.load(answer)["items"]
    taken = {
        int(pod["metadata"]["annotations"][INDEX])
        for pod in pods
        if pod["status"]["phase"] in ("Pending", "Running")
        and "deletionTimestamp" not in pod["metadata"]
    }
    index = 0
    while index in taken or time.monotonic() - given.get((job, index), -9) < 2:
        index += 1
    given[job, index] = time.monotonic()
    return index


def patch(review: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the changes to a pod that is to be created."""
    meta = review["object"]["metadata"]
    job = meta.get("labels", {}).get("job-name")
    if not job:
        return []
    with lock:
        index = least_index(review["namespace"], job)
    annotations = {**meta.get("annotations", {}), INDEX: str(index)}
    return [
        {"op": "add", "path": "/metadata/annotations", "value": annotations},
        {"op": "add", "path": "/metadata/generateName", "value": f"{job}-{index}-"},
        {"op": "add", "path": "/spec/hostname", "value": f"{job}-{index}"},
    ]


class Handler(BaseHTTPRequestHandler):
    """Answers reviews of admission."""

    def do_POST(self) -> None:
        """Answer one."""
        review = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        changes = base64.b64encode(json.dumps(patch(review["request"])).encode()).decode()
        allowed = {"uid": review["request"]["uid"], "allowed": True}
        review["response"] = {**allowed, "patchType": "JSONPatch", "patch": changes}
        body = json.dumps(review).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


server = ThreadingHTTPServer(("10.99.0.1", int(port)), Handler)
context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
context.load_cert_chain(certificate, key)
server.socket = context.wrap_socket(server.socket, server_side=True)
server.serve_forever()
