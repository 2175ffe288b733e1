"""The API of a stand-in for a Kubernetes cluster, for the real kubectl: pods, jobs, events and exec.

`orchestrator.lab.pods` runs it as ``python -m orchestrator.lab.apiserver LAB_DIRECTORY ADDRESS PORT``.
A command goes on when its client disappears, as in a pod of a real cluster.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import signal
import ssl
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from aiohttp import WSMsgType, web

from orchestrator.lab import namespaces, podrights
from orchestrator.lab.podcluster import NAMESPACE, Cluster
from orchestrator.lab.podtables import Object, table, timestamp
from orchestrator.lab.state import Lab, LabNode, read

_STDIN, _STDOUT, _STDERR, _STATUS, _CLOSED = 0, 1, 2, 3, 255
_PROTOCOL = "v5.channel.k8s.io"
_CHUNK = 1 << 17
_RESOURCES = {
    "/api/v1": ("pods", "Pod", "v1"),
    "/apis/batch/v1": ("jobs", "Job", "batch/v1"),
    "/apis/authorization.k8s.io/v1": (
        "selfsubjectaccessreviews",
        "SelfSubjectAccessReview",
        "authorization.k8s.io/v1",
    ),
}


def _failure(code: int, reason: str, message: str) -> web.Response:
    status = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure"}
    return web.json_response(
        {**status, "reason": reason, "message": message, "code": code}, status=code
    )


def _missing(kind: str, name: str) -> web.Response:
    return _failure(404, "NotFound", f'{kind} "{name}" not found')


def _selected(objects: Iterable[Object], selector: str) -> list[Object]:
    wanted = [term.partition("=") for term in selector.split(",") if term]

    def fits(item: Object) -> bool:
        labels = item["metadata"].get("labels", {})
        return all(
            labels.get(name) == value if equals else name in labels
            for name, equals, value in wanted
        )

    return [item for item in objects if fits(item)]


def _listed(request: web.Request, kind: str, version: str, found: list[Object]) -> web.Response:
    if _wants_table(request):
        return web.json_response(table(kind, found, timestamp()))
    return web.json_response({"kind": f"{kind}List", "apiVersion": version, "items": found})


def _shown(request: web.Request, kind: str, found: Object) -> web.Response:
    return web.json_response(table(kind, [found], timestamp()) if _wants_table(request) else found)


def _wants_table(request: web.Request) -> bool:
    return "as=Table;v=v1;" in request.headers.get("Accept", "")


class Server:
    """The API. ``tokens`` are those that may do everything, only read, or nothing."""

    def __init__(self, cluster: Cluster, tokens: Mapping[str, str]) -> None:
        self.cluster = cluster
        self.tokens = tokens
        self.rights = set[podrights.Right]()
        self.objects: dict[str, Object] = {}

    def application(self) -> web.Application:
        """Return the application with all paths that kubectl asks for."""

        async def admit(request: web.Request, handler: Callable[..., Any]) -> web.StreamResponse:
            return await self._admit(request, handler)

        application = web.Application(middlewares=[web.middleware(admit)], client_max_size=1 << 24)
        pods, jobs = "/api/v1/namespaces/{ns}/pods", "/apis/batch/v1/namespaces/{ns}/jobs"
        review = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
        policies = "/apis/networking.k8s.io/v1/namespaces/{ns}/networkpolicies"
        routes = [
            ("GET", "/version", self._version),
            ("GET", "/{root:apis?}", self._groups),
            *(("GET", path, self._resources) for path in _RESOURCES),
            ("POST", review, self._review),
            ("GET", pods, self._list_pods),
            ("GET", pods + "/{name}", self._get_pod),
            ("DELETE", pods + "/{name}", self._delete_pod),
            ("GET", pods + "/{name}/status", self._get_pod),
            ("PATCH", pods + "/{name}/status", self._patch_status),
            ("POST", pods + "/{name}/eviction", self._evict),
            ("GET", pods + "/{name}/exec", self._exec),
            ("POST", pods + "/{name}/exec", self._exec),
            ("GET", "/api/v1/namespaces/{ns}/events", self._list_events),
            ("GET", jobs, self._list_jobs),
            ("POST", jobs, self._create_job),
            ("GET", jobs + "/{name}", self._get_job),
            ("DELETE", jobs + "/{name}", self._delete_job),
            ("GET", "/api/v1/namespaces/{ns}", self._get_object),
            ("PUT", "/api/v1/namespaces/{ns}", self._put_object),
            ("GET", "/api/v1/namespaces/{ns}/secrets", self._list_objects),
            ("GET", policies, self._list_objects),
            ("POST", policies, self._put_object),
            ("GET", "/apis/networking.k8s.io/v1/ingressclasses", self._list_objects),
            ("GET", "/apis/storage.k8s.io/v1/storageclasses", self._list_objects),
        ]
        for method, path, handler in routes:
            application.router.add_route(method, path, handler)
            self.rights.add(podrights.of_route(method, path))
        return application

    def role(self, request: web.Request) -> str:
        """Return the role of a request's token: ``admin`` or ``viewer``; empty without one."""
        token = request.headers.get("Authorization", "").removeprefix("Bearer ")
        return self.tokens.get(token, "")

    async def _admit(self, request: web.Request, handler: Callable[..., Any]) -> web.StreamResponse:
        role = self.role(request)
        if not role:
            return _failure(401, "Unauthorized", "Unauthorized")
        resource = request.match_info.route.resource
        right = podrights.of_route(request.method, resource.canonical if resource else "/")
        if not podrights.has_right(role, right):
            return _failure(403, "Forbidden", f'User "{role}" cannot {" ".join(right)}')
        response: web.StreamResponse = await handler(request)
        return response

    async def _version(self, _: web.Request) -> web.Response:
        text = {"major": "1", "minor": "37", "gitVersion": "v1.37.0-orch-lab"}
        return web.json_response({**text, "platform": "linux/amd64"})

    async def _groups(self, request: web.Request) -> web.Response:
        if request.path == "/api":
            return web.json_response({"kind": "APIVersions", "versions": ["v1"]})
        groups = []
        for path in list(_RESOURCES)[1:]:
            version = {"groupVersion": path.removeprefix("/apis/"), "version": "v1"}
            name = version["groupVersion"].partition("/")[0]
            groups.append({"name": name, "versions": [version], "preferredVersion": version})
        return web.json_response({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups})

    async def _resources(self, request: web.Request) -> web.Response:
        name, kind, group = _RESOURCES[request.path]
        verbs = ["create", "delete", "get", "list", "patch"]
        resource = {"name": name, "singularName": "", "namespaced": True, "kind": kind}
        listing = {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group}
        return web.json_response({**listing, "resources": [{**resource, "verbs": verbs}]})

    async def _review(self, request: web.Request) -> web.Response:
        if "protobuf" in request.content_type:  # of kubectl auth can-i
            spec = podrights.read_protobuf(await request.read())
        else:
            spec = (await request.json())["spec"]
        right = podrights.of_review(spec)
        everywhere = podrights.is_everywhere(spec)
        has_right = podrights.has_right(self.role(request), right, everywhere=everywhere)
        allowed = right in self.rights and has_right
        kind = {"kind": "SelfSubjectAccessReview", "apiVersion": "authorization.k8s.io/v1"}
        answer = {**kind, "metadata": {}, "spec": spec, "status": {"allowed": allowed}}
        return web.json_response(answer, status=201)

    async def _get_object(self, request: web.Request) -> web.Response:
        name = request.path.rpartition("/")[2]
        return web.json_response(self.objects.get(request.path, {"metadata": {"name": name}}))

    async def _put_object(self, request: web.Request) -> web.Response:
        """Keep an object that nothing acts on, below the path of its request."""
        found = await request.json()
        path = (
            request.path
            if request.method == "PUT"
            else f"{request.path}/{found['metadata']['name']}"
        )
        self.objects[path] = found
        return web.json_response(found, status=201)

    async def _list_objects(self, request: web.Request) -> web.Response:
        found = [item for path, item in self.objects.items() if path.startswith(f"{request.path}/")]
        return web.json_response({"kind": "List", "apiVersion": "v1", "items": found})

    async def _list_pods(self, request: web.Request) -> web.Response:
        pods = self.cluster.every_pod().values() if request.match_info["ns"] == NAMESPACE else []
        chosen = _selected(pods, request.query.get("labelSelector", ""))
        without = request.query.get("fieldSelector", "").split(",")
        chosen = [pod for pod in chosen if f"status.phase!={pod['status']['phase']}" not in without]
        return _listed(request, "Pod", "v1", chosen)

    def _pod(self, request: web.Request) -> Object | None:
        return self.cluster.every_pod().get(request.match_info["name"])

    async def _get_pod(self, request: web.Request) -> web.Response:
        pod = self._pod(request)
        name = request.match_info["name"]
        return _shown(request, "Pod", pod) if pod else _missing("pods", name)

    async def _delete_pod(self, request: web.Request) -> web.Response:
        if (pod := self._pod(request)) is None:
            return _missing("pods", request.match_info["name"])
        self.cluster.delete_pod(request.match_info["name"])
        self.cluster.settle()
        return web.json_response(pod)

    async def _evict(self, request: web.Request) -> web.Response:
        if self._pod(request) is None:
            return _missing("pods", request.match_info["name"])
        name, words = request.match_info["name"], "Eviction API: evicting"
        self.cluster.delete_pod(name, "EvictionByEvictionAPI", words)
        self.cluster.settle()
        return web.json_response({"kind": "Status", "apiVersion": "v1", "status": "Success"})

    async def _patch_status(self, request: web.Request) -> web.Response:
        """Set the status of a pod, as its kubelet would; one that has failed is ended."""
        name = request.match_info["name"]
        if name not in self.cluster.pods:
            return _missing("pods", name)
        pod = self.cluster.pods[name]
        pod["status"].update((await request.json())["status"])
        if pod["status"]["phase"] == "Failed":
            self.cluster.kill_main(name, signal.SIGKILL)
        self.cluster.settle()
        return web.json_response(pod)

    async def _list_events(self, request: web.Request) -> web.Response:
        name = request.query.get("fieldSelector", "").rpartition("=")[2]
        found = [e for e in self.cluster.events if name in ("", e["involvedObject"]["name"])]
        return web.json_response({"kind": "EventList", "apiVersion": "v1", "items": found})

    async def _list_jobs(self, request: web.Request) -> web.Response:
        chosen = _selected(self.cluster.jobs.values(), request.query.get("labelSelector", ""))
        return _listed(request, "Job", "batch/v1", chosen)

    async def _create_job(self, request: web.Request) -> web.Response:
        job = await request.json()
        name = job["metadata"]["name"]
        if name in self.cluster.jobs:
            return _failure(409, "AlreadyExists", f'jobs.batch "{name}" already exists')
        if not job["spec"]["template"]["spec"]["containers"][0].get("image"):
            where = "spec.template.spec.containers[0].image: Required value"
            return _failure(422, "Invalid", f'Job.batch "{name}" is invalid: {where}')
        own = {
            "namespace": NAMESPACE,
            "uid": secrets.token_hex(8),
            "creationTimestamp": timestamp(),
        }
        job["metadata"].update(own)
        job["status"] = {}
        self.cluster.jobs[name] = job
        self.cluster.settle()
        return web.json_response(job, status=201)

    async def _get_job(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        job = self.cluster.jobs.get(name)
        return _shown(request, "Job", job) if job else _missing("jobs.batch", name)

    async def _delete_job(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        if name not in self.cluster.jobs:
            return _missing("jobs.batch", name)
        job = self.cluster.jobs[name]
        self.cluster.delete_job(name)
        self.cluster.settle()
        return web.json_response(job)

    async def _exec(self, request: web.Request) -> web.StreamResponse:
        """Run a command in a pod: channels for its streams, and at its end the status."""
        if (pod := self._pod(request)) is None:
            return _missing("pods", request.match_info["name"])
        socket = web.WebSocketResponse(protocols=[_PROTOCOL], max_msg_size=0, compress=False)
        await socket.prepare(request)
        node = self.cluster.lab.node(pod["spec"]["nodeName"])
        await _connected(node)
        prefix, environment = self.cluster.entering(pod)
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            *prefix, *request.query.getall("command"), stdin=pipe, stdout=pipe, stderr=pipe,
            env=environment, start_new_session=True, limit=_CHUNK,
        )  # fmt: skip
        assert process.stdin and process.stdout and process.stderr
        feeding = asyncio.create_task(_feed(socket, process.stdin, node))
        outputs = asyncio.gather(
            _drain(process.stdout, socket, _STDOUT, node),
            _drain(process.stderr, socket, _STDERR, node),
        )
        done = asyncio.gather(process.wait(), outputs)
        futures: list[asyncio.Future[Any]] = [done, feeding]
        await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)
        if done.done():
            feeding.cancel()
            with contextlib.suppress(ConnectionError):
                await socket.send_bytes(bytes([_STATUS]) + _ending(process.returncode or 0))
                await socket.close()
            return socket
        outputs.cancel()  # the client is gone; the command goes on with closed pipes
        with contextlib.suppress(asyncio.CancelledError):
            await done
        return socket


def _ending(code: int) -> bytes:
    if code == 0:
        return json.dumps({"metadata": {}, "status": "Success"}).encode()
    number = code if code > 0 else 128 - code
    cause = {"reason": "ExitCode", "message": str(number)}
    words = f"command terminated with non-zero exit code: exit status {number}"
    failed = {"metadata": {}, "status": "Failure", "reason": "NonZeroExitCode", "message": words}
    return json.dumps({**failed, "details": {"causes": [cause]}}).encode()


async def _connected(node: LabNode) -> None:
    """Wait while the cable of a node is out: commands are entered past it, as no kubelet could be."""
    while namespaces.is_unplugged(node):
        await asyncio.sleep(0.05)


async def _feed(socket: web.WebSocketResponse, sink: asyncio.StreamWriter, node: LabNode) -> None:
    """Pass the client's bytes to the command until the client is gone."""
    async for message in socket:
        if message.type is not WSMsgType.BINARY or not message.data:
            continue
        await _connected(node)
        channel, data = message.data[0], message.data[1:]
        with contextlib.suppress(ConnectionError):  # the command reads no more
            if channel == _STDIN and data:
                sink.write(data)
                await sink.drain()
            elif channel == _CLOSED and data == bytes([_STDIN]):
                sink.close()
    sink.close()


async def _drain(
    source: asyncio.StreamReader, socket: web.WebSocketResponse, channel: int, node: LabNode
) -> None:
    """Pass an output of the command to the client until no process holds its other end."""
    try:
        while data := await source.read(_CHUNK):
            await _connected(node)
            await socket.send_bytes(bytes([channel]) + data)
    except ConnectionError:
        return  # the client is gone; the rest of the output is dropped


async def serve(lab: Lab, folder: Path, address: str, port: int) -> None:
    """Serve until the lab's holder ends, or this process is killed."""
    tokens = json.loads((folder / "tokens.json").read_text(encoding="utf-8"))
    cluster = Cluster(lab, folder / "cluster.json")
    # A command is part of the address of its request.
    runner = web.AppRunner(
        Server(cluster, tokens).application(), shutdown_timeout=0, max_line_size=1 << 20
    )
    await runner.setup()
    cluster.begin()
    secure = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    secure.load_cert_chain(folder / "server.crt", folder / "server.key")
    await web.TCPSite(runner, address, port, ssl_context=secure).start()
    ended = asyncio.Event()
    if lab.holder:
        asyncio.get_running_loop().add_reader(os.pidfd_open(lab.holder), ended.set)
    (folder / "ready").touch()
    await ended.wait()


def main() -> None:
    """Serve the API of the lab in a directory."""
    lab = read(Path(sys.argv[1]))
    if lab is None:
        sys.exit(f"no lab in {sys.argv[1]}")
    asyncio.run(serve(lab, lab.pods_folder, sys.argv[2], int(sys.argv[3])))


if __name__ == "__main__":
    main()
