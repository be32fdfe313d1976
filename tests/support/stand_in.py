"""A local stand-in for the Hub: the endpoints that huggingface_hub uses to push and to download, kept in memory."""

import base64
import hashlib
import json
import re
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

TOKEN = "hf_standin"
LARGE = (".safetensors", ".png")  # what is uploaded through LFS


@dataclass
class Repository:
    private: bool = False
    branches: dict[str, str] = field(default_factory=dict)  # branch -> commit
    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)  # commit -> files
    log: list[tuple[str, list[str]]] = field(default_factory=list)  # commit, paths it changed

    def commit(self, branch: str, changes: dict[str, bytes], deleted: tuple[str, ...] = ()) -> str:
        files = self.commits.get(self.branches.get(branch, ""), {}) | changes
        for path in deleted:
            del files[path]
        oid = hashlib.sha1(f"{len(self.commits)} {sorted(files)}".encode()).hexdigest()
        self.commits[oid], self.branches[branch] = files, oid
        self.log.append((oid, sorted(changes)))
        return oid

    def resolve(self, revision: str) -> str | None:
        return self.branches.get(revision) or (revision if revision in self.commits else None)


class Hub:
    """The server, while the `with` block lasts.

    `cut` holds paths whose next download breaks off in the middle, `full` repositories without room for large files,
    `broken` those that refuse the files although there is room.
    """

    def __init__(self) -> None:
        self.repositories: dict[str, Repository] = {}
        self.blobs: dict[str, bytes] = {}
        self.ranges: list[str] = []
        self.cut: set[str] = set()
        self.full: set[str] = set()
        self.broken: set[str] = set()
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), type("Bound", (Handler,), {"hub": self}))
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"

    def __enter__(self) -> "Hub":
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.server.shutdown()
        self.server.server_close()


NAME = r"(?P<name>[\w.-]+/[\w.-]+)"
ROUTES = [
    ("POST", r"/api/repos/create", "create"),
    ("POST", r"/api/validate-yaml", "validate_yaml"),
    ("POST", rf"/api/models/{NAME}/preupload/(?P<revision>[^/]+)", "preupload"),
    ("POST", rf"/api/models/{NAME}/commit/(?P<revision>[^/]+)", "commit"),
    ("POST", rf"/api/models/{NAME}/branch/(?P<revision>[^/]+)", "branch"),
    ("POST", rf"/{NAME}\.git/info/lfs/objects/batch", "batch"),
    ("PUT", r"/lfs/(?P<oid>\w+)", "store"),
    ("GET", rf"/api/models/{NAME}(/revision/(?P<revision>[^/]+))?", "info"),
    ("GET", rf"/api/models/{NAME}/tree/(?P<revision>[^/]+)(/(?P<path>.+))?", "tree"),
    ("GET|HEAD", rf"/{NAME}/resolve/(?P<revision>[^/]+)/(?P<path>.+)", "download"),
]


class Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *arguments: object) -> None:
        pass

    def dispatch(self) -> None:
        self.body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.headers.get("Transfer-Encoding") == "chunked":
            self.body = b"".join(iter(self.read_chunk, b""))
        path = urlsplit(self.path).path
        for method, pattern, handler in ROUTES:
            match = re.fullmatch(pattern, path)
            if match and self.command in method.split("|"):
                return self.allowed(handler, {k: unquote(v) if v else v for k, v in match.groupdict().items()})
        self.refuse(404, "EntryNotFound", f"the stand-in has no {self.command} {path}")

    do_GET = do_HEAD = do_POST = do_PUT = dispatch

    def read_chunk(self) -> bytes:
        data = self.rfile.read(int(self.rfile.readline(), 16))
        self.rfile.readline()
        return data

    def allowed(self, handler: str, found: dict[str, str]) -> None:
        """Writing needs the token, reading a private repository too; a wrong token is refused everywhere."""
        given = self.headers.get("Authorization")
        repository = self.hub.repositories.get(found.get("name") or "")
        if given not in (None, f"Bearer {TOKEN}"):
            return self.refuse(401, None, "Invalid credentials in Authorization header")
        writes = self.command in ("POST", "PUT") and handler not in ("validate_yaml", "store")
        if given is None and (writes or (repository and repository.private)):
            return self.refuse(401, "RepoNotFound", "Invalid username or password.")
        if "name" in found and repository is None:
            return self.refuse(404 if given else 401, "RepoNotFound", "Repository not found")
        if "name" in found:
            found["repository"] = repository
        getattr(self, handler)(**found)

    def answer(self, value: object, status: int = 200) -> None:
        self.send(json.dumps(value).encode(), status, {"Content-Type": "application/json"})

    def refuse(self, status: int, code: str | None, message: str, **headers: str) -> None:
        headers |= {"X-Error-Message": message} | ({"X-Error-Code": code} if code else {})
        self.send(json.dumps({"error": message}).encode(), status, headers)

    def send(self, data: bytes, status: int, headers: dict[str, str], cut: int | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(data)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data[:cut])
        if cut is not None:
            self.close_connection = True

    def create(self) -> None:
        asked = json.loads(self.body)
        name = f"{asked.get('organization') or 'somebody'}/{asked['name']}"
        url = {"url": f"{self.hub.url}/{name}", "name": name, "id": name}
        if name in self.hub.repositories:
            return self.answer(url | {"error": "You already created this model repo"}, 409)
        private = asked.get("private") or asked.get("visibility") == "private"
        repository = self.hub.repositories[name] = Repository(private=bool(private))
        repository.commit("main", {".gitattributes": b"*.safetensors filter=lfs\n"})
        self.answer(url)

    def validate_yaml(self) -> None:
        content = json.loads(self.body)["content"]
        if "license: my-licence" in content:
            return self.answer({"errors": [{"message": '"license" must be one of [apache-2.0, mit, ...]'}]}, 400)
        self.answer({"errors": [], "warnings": []})

    def preupload(self, name: str, repository: Repository, revision: str) -> None:
        held = repository.commits[repository.branches.get(revision, repository.branches["main"])]
        found = []
        for path in (file["path"] for file in json.loads(self.body)["files"]):
            mode, oid = ("lfs", lfs_oid) if path.endswith(LARGE) else ("regular", git_oid)
            known = oid(held[path]) if path in held else None
            found.append({"path": path, "uploadMode": mode, "shouldIgnore": False, "oid": known})
        self.answer({"files": found})

    def batch(self, name: str, repository: Repository) -> None:
        objects = json.loads(self.body)["objects"]
        for one in objects:
            place = "broken" if name in self.hub.broken else one["oid"]
            if name in self.hub.full:
                one["error"] = {"code": 403, "message": "storage limit reached"}
            elif place not in self.hub.blobs:
                one["actions"] = {"upload": {"href": f"{self.hub.url}/lfs/{place}"}}
        self.answer({"transfer": "basic", "objects": objects})

    def store(self, oid: str) -> None:
        if lfs_oid(self.body) != oid:
            return self.refuse(400, None, "the content is not that of the oid")
        self.hub.blobs[oid] = self.body
        self.send(b"", 200, {})

    def commit(self, name: str, repository: Repository, revision: str) -> None:
        if revision not in repository.branches:
            return self.refuse(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        changes, deleted = {}, []
        for line in self.body.splitlines():
            item = json.loads(line)
            value = item["value"]
            if item["key"] == "file":
                changes[value["path"]] = base64.b64decode(value["content"])
            elif item["key"] == "lfsFile":
                changes[value["path"]] = self.hub.blobs[value["oid"]]
            elif item["key"] == "deletedFile":
                deleted.append(value["path"])
        oid = repository.commit(revision, changes, tuple(deleted))
        self.answer({"success": True, "commitOid": oid, "commitUrl": f"{self.hub.url}/{name}/commit/{oid}"})

    def branch(self, name: str, repository: Repository, revision: str) -> None:
        if revision in repository.branches:
            return self.answer({"error": "Reference already exists"}, 409)
        repository.branches[revision] = repository.branches["main"]
        self.answer({}, 201)

    def info(self, name: str, repository: Repository, revision: str | None) -> None:
        commit = repository.resolve(revision or "main")
        if commit is None:
            return self.refuse(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        files = [{"rfilename": path} for path in repository.commits[commit]]
        known = {"id": name, "modelId": name, "sha": commit, "private": repository.private, "siblings": files}
        self.answer(known | {"tags": [], "downloads": 0, "likes": 0})

    def tree(self, name: str, repository: Repository, revision: str, path: str | None) -> None:
        commit = repository.resolve(revision)
        if commit is None:
            return self.refuse(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        start = f"{path}/" if path else ""
        found = {p: data for p, data in repository.commits[commit].items() if p.startswith(start)}
        if not found:
            return self.refuse(404, "EntryNotFound", f"{path} does not exist")
        self.answer([{"type": "file", "path": p, "size": len(d), "oid": git_oid(d)} for p, d in found.items()])

    def download(self, name: str, repository: Repository, revision: str, path: str) -> None:
        commit = repository.resolve(revision)
        if commit is None:
            return self.refuse(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        data = repository.commits[commit].get(path)
        if data is None:
            return self.refuse(404, "EntryNotFound", "Entry not found", X_Repo_Commit=commit)
        headers = {"X-Repo-Commit": commit, "ETag": f'"{git_oid(data)}"', "Accept-Ranges": "bytes"}
        if path.endswith(LARGE):
            headers |= {"X-Linked-ETag": f'"{lfs_oid(data)}"', "X-Linked-Size": str(len(data))}
        asked = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range") or "")
        if self.command == "GET" and asked:
            start = int(asked[1])
            self.hub.ranges.append(f"{path} {start}")
            headers["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
            return self.send(data[start:], 206, headers)
        cut = None
        if self.command == "GET" and path in self.hub.cut:
            self.hub.cut.remove(path)
            cut = len(data) // 2
        self.send(data, 200, headers, cut)


def git_oid(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def lfs_oid(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
