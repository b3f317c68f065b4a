"""A Hugging Face Hub on the loopback interface: the endpoints that creating a repository and uploading a folder use."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TOKEN = "hf_loopback"


@dataclass
class FakeHub:
    """Repositories with their files, as a Hub would have them; requests without the token are refused."""

    address: str = ""
    private: dict[str, bool] = field(default_factory=dict)
    files: dict[str, dict[str, bytes]] = field(default_factory=dict)
    blobs: dict[str, bytes] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)

    def answer(self, method: str, path: str, body: bytes) -> tuple[int, Any]:
        """Return the status and the JSON content of an answer."""
        match [part for part in path.split("?")[0].split("/") if part]:
            case ["api", "repos", "create"]:
                return self._create(json.loads(body))
            case ["api", "validate-yaml"]:
                return 200, {"errors": [], "warnings": []}
            case ["api", "models", owner, name, "preupload", _]:
                listed = json.loads(body)["files"]
                return 200, {"files": [_upload_mode(file["path"]) for file in listed]} | {
                    "repo": f"{owner}/{name}"
                }
            case [_, _, "info", "lfs", "objects", "batch"]:
                return 200, {
                    "transfer": "basic",
                    "objects": [self._place(item) for item in json.loads(body)["objects"]],
                }
            case ["blobs", oid] if method == "PUT":
                assert hashlib.sha256(body).hexdigest() == oid
                self.blobs[oid] = body
                return 200, {}
            case ["api", "models", owner, name, "commit", _]:
                return self._commit(f"{owner}/{name}", [json.loads(line) for line in body.splitlines()])
        return 404, {"error": f"{method} {path} is not implemented"}

    def _create(self, request: dict[str, Any]) -> tuple[int, Any]:
        repo = f"{request['organization']}/{request['name']}"
        private = repo in self.private
        self.private.setdefault(repo, bool(request.get("private") or request.get("visibility") == "private"))
        self.files.setdefault(repo, {})
        return 409 if private else 200, {"url": f"{self.address}/{repo}", "error": "exists"}

    def _place(self, wanted: dict[str, Any]) -> dict[str, Any]:
        upload = {"href": f"{self.address}/blobs/{wanted['oid']}", "header": {}}
        return {"oid": wanted["oid"], "size": wanted["size"], "actions": {"upload": upload}}

    def _commit(self, repo: str, operations: list[dict[str, Any]]) -> tuple[int, Any]:
        for operation in operations:
            value = operation["value"]
            if operation["key"] == "file":
                self.files[repo][value["path"]] = base64.b64decode(value["content"])
            elif operation["key"] == "lfsFile":
                self.files[repo][value["path"]] = self.blobs[value["oid"]]
        return 200, {"commitUrl": f"{self.address}/{repo}/commit/abc", "commitOid": "abc", "success": True}


def _upload_mode(path: str) -> dict[str, Any]:
    mode = "lfs" if path.endswith(".safetensors") else "regular"  # as the Hub's own .gitattributes
    return {"path": path, "uploadMode": mode, "shouldIgnore": False, "oid": None}


@contextmanager
def fake_hub() -> Iterator[FakeHub]:
    """Serve a Hub on a free port until the block is left."""
    hub = FakeHub()

    class Handler(BaseHTTPRequestHandler):
        def _handle(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            hub.requests.append(f"{self.command} {self.path}")
            allowed = (
                self.path.startswith("/blobs/") or self.headers.get("Authorization") == f"Bearer {TOKEN}"
            )
            status, content = (
                hub.answer(self.command, self.path, body) if allowed else (401, {"error": "no token"})
            )
            text = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        do_GET = do_POST = do_PUT = _handle

        def log_message(self, *words: object) -> None:
            """Print nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        hub.address = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield hub
        finally:
            server.shutdown()
            thread.join()
