"""A registry without images: python registry.py PORT"""

import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class EmptyRegistry(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        is_root = self.path.rstrip("/") == "/v2"
        body = b"{}" if is_root else b'{"errors": [{"code": "MANIFEST_UNKNOWN", "message": "manifest unknown"}]}'
        self.send_response(200 if is_root else 404)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_HEAD(self) -> None:
        self.do_GET()


if __name__ == "__main__":
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), EmptyRegistry).serve_forever()
