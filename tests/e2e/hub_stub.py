"""As much of the Hugging Face hub as `datasets` asks for when it streams a data set."""

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

SHA = "0123456789abcdef0123456789abcdef01234567"


@contextmanager
def hub(name: str, files: Mapping[str, bytes], broken: str = "") -> Iterator[str]:
    """The address of a hub that has one data set; the file `broken` is listed, but not given."""

    class Answers(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self) -> None:
            self.do_GET()

        def do_GET(self) -> None:
            place = unquote(urlsplit(self.path).path)
            api, resolve = f"/api/datasets/{name}", f"/datasets/{name}/resolve/"
            if place.startswith(f"{api}/tree/{SHA}"):
                folder = place.removeprefix(f"{api}/tree/{SHA}").strip("/")
                self._give_json(_tree(files, folder))
            elif place in (api, f"{api}/revision/main", f"{api}/revision/{SHA}"):
                siblings = [{"rfilename": path} for path in files]
                self._give_json({"id": name, "sha": SHA, "tags": [], "siblings": siblings})
            elif place.startswith(resolve):
                self._give_file(place.removeprefix(resolve).partition("/")[2])
            else:
                self._give(404, b"{}", {"X-Error-Code": "RepoNotFound"})

        def _give_file(self, path: str) -> None:
            content = files.get(path)
            if content is None or path == broken:
                self._give(404, b"{}", {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": SHA})
                return
            headers = {"ETag": f'"{path}"', "X-Repo-Commit": SHA, "Accept-Ranges": "bytes"}
            asked = self.headers.get("Range")
            if asked is None:
                self._give(200, content, headers)
                return
            first, _, last = asked.removeprefix("bytes=").partition("-")
            part = content[int(first) : int(last or len(content)) + 1]
            stop = int(first) + len(part) - 1
            headers["Content-Range"] = f"bytes {first}-{stop}/{len(content)}"
            self._give(206, part, headers)

        def _give_json(self, body: object) -> None:
            self._give(200, json.dumps(body).encode(), {"Content-Type": "application/json"})

        def _give(self, status: int, body: bytes, headers: Mapping[str, str]) -> None:
            self.send_response(status)
            for key, value in ({"Content-Length": str(len(body))} | dict(headers)).items():
                self.send_header(key, value)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002 - of the base
            """Nothing is told."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _tree(files: Mapping[str, bytes], folder: str) -> list[dict[str, object]]:
    """What lies directly in a folder."""
    inside = [path for path in files if path.rpartition("/")[0] == folder]
    found: list[dict[str, object]] = [
        {"type": "file", "path": path, "size": len(files[path]), "oid": "a" * 40} for path in inside
    ]
    folders = {path.partition("/")[0] for path in files if "/" in path} if not folder else set()
    return found + [{"type": "directory", "path": one, "oid": "b" * 40} for one in sorted(folders)]
