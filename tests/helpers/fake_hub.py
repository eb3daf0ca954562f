"""As much of the Hugging Face hub as pushing and pulling small files needs, in memory, on this machine."""

import hashlib
import json
from base64 import b64decode
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from urllib.parse import unquote, urlsplit

TOKEN = "hf_right"


class FakeHub(ThreadingHTTPServer):
    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.repositories: dict[str, dict[str, dict[str, bytes]]] = {}  # name → commit → path → content, oldest first
        self.created: dict[str, dict[str, object]] = {}  # name → what it was asked for with
        self.messages: list[str] = []
        self.requests: list[str] = []

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def files(self, repository: str) -> dict[str, bytes]:
        commits = self.repositories[repository]
        return commits[list(commits)[-1]] if commits else {}


@contextmanager
def fake_hub() -> Iterator[FakeHub]:
    server = FakeHub()
    thread = Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class Handler(BaseHTTPRequestHandler):
    server: FakeHub

    def log_message(self, *arguments: object) -> None:
        """Nothing on the terminal."""

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = self._path()
        if path.startswith("/api/models/") and "/revision/" in path:  # older clients ask whether it stores by Xet
            known = path.removeprefix("/api/models/").partition("/revision/")[0] in self.server.repositories
            return self._json({"id": "owner/name", "xetEnabled": False}) if known else self._fail(404, "RepoNotFound")
        repository, _, rest = path.strip("/").partition("/resolve/")
        revision, _, name = rest.partition("/")
        commits = self.server.repositories.get(repository)
        if commits is None:
            return self._fail(404, "RepoNotFound")
        commit = (list(commits) or ["0" * 40])[-1] if revision == "main" else revision
        if commit not in commits and revision != "main":
            return self._fail(404, "RevisionNotFound")
        content = commits.get(commit, {}).get(name)
        if content is None:
            return self._fail(404, "EntryNotFound", commit)
        headers = {"ETag": f'"{hashlib.sha1(content).hexdigest()}"', "X-Repo-Commit": commit}
        return self._answer(200, content, headers)

    def do_POST(self) -> None:
        path, body = self._path(), self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if path == "/api/validate-yaml":
            return self._json({"errors": [], "warnings": []})
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            return self._fail(401, "")
        if path == "/api/repos/create":
            return self._create(json.loads(body))
        repository, action = path.removeprefix("/api/models/").rsplit("/", 2)[:2]
        if action == "preupload":
            files = [{"path": one["path"], "uploadMode": "regular", "shouldIgnore": False} for one in _files(body)]
            return self._json({"files": files})
        return self._commit(repository, [json.loads(line) for line in body.splitlines()])

    def _create(self, asked: dict[str, object]) -> None:
        name = f"{asked['organization']}/{asked['name']}"
        url = f"{self.server.endpoint}/{name}"
        if name in self.server.repositories:
            return self._json({"error": "You already created this model repo", "url": url}, 409)
        self.server.repositories[name] = {}
        self.server.created[name] = asked
        return self._json({"url": url})

    def _commit(self, repository: str, lines: list[dict[str, object]]) -> None:
        files = dict(self.server.files(repository))
        for line in lines:
            if line["key"] == "header":
                self.server.messages.append(line["value"]["summary"])
            else:
                files[line["value"]["path"]] = b64decode(line["value"]["content"])
        commit = f"{len(self.server.repositories[repository]) + 1:040x}"
        self.server.repositories[repository][commit] = files
        url = f"{self.server.endpoint}/{repository}/commit/{commit}"
        return self._json({"success": True, "commitOid": commit, "commitUrl": url, "hookOutput": ""})

    def _path(self) -> str:
        self.server.requests.append(f"{self.command} {self.path}")
        return unquote(urlsplit(self.path).path)

    def _json(self, value: object, status: int = 200) -> None:
        self._answer(status, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def _fail(self, status: int, code: str, commit: str = "") -> None:
        extra = {"X-Repo-Commit": commit} if commit else {}
        self._answer(status, b"{}", {"X-Error-Code": code, "Content-Type": "application/json", **extra})

    def _answer(self, status: int, content: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)


def _files(body: bytes) -> list[dict[str, str]]:
    files: list[dict[str, str]] = json.loads(body)["files"]
    return files
