"""Archives, and a web server that fails as real ones do, for the tests of downloads."""
import io
import tarfile
import time
from http.server import BaseHTTPRequestHandler


def tar(files, compression=''):
    """{name: bytes} as the bytes of a tar archive."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode=f'w:{compression}') as t:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            t.addfile(member, io.BytesIO(content))
    return out.getvalue()


class Flaky(BaseHTTPRequestHandler):
    """Serves `content`; the i-th answer does what `plan[i]` says, the last plan from there on."""

    def do_GET(self):
        state = self.server.state
        plan = state['plan'].pop(0) if len(state['plan']) > 1 else state['plan'][0]
        content, start = state['content'], 0
        if plan in ('busy', 'gone'):
            return self.send_error(503 if plan == 'busy' else 404)
        if plan in ('moved', 'lost'):  # to an address that serves the next plan, or to itself for ever
            self.send_response(302)
            self.send_header('Location', '/elsewhere' if plan == 'moved' else self.path)
            self.send_published()
            self.end_headers()
            return
        if 'Range' in self.headers and plan != 'no ranges':
            start = int(self.headers['Range'][6:-1])
            state['resumed'] += 1
            if start >= len(content):
                self.send_response(416)
                self.send_header('Content-Range', f'bytes */{len(content)}')
                self.end_headers()
                return
        if plan == 'elsewhere':  # says that it goes on, and begins anew
            start = 0
        self.send_response(206 if start or plan == 'elsewhere' else 200)
        if plan != 'silent':  # about the length
            self.send_header('Content-Length', f'{len(content) - start + 9 * (plan == "longer")}')
        self.send_header('Content-Range', f'bytes {start}-{len(content) - 1}/{len(content)}')
        self.send_published()
        self.end_headers()
        end = start + len(content) // 3 if plan in ('drop', 'stall') else len(content)
        self.wfile.write(content[start:end])
        if plan == 'stall':
            time.sleep(1.5)

    def send_published(self):
        if 'published' in self.server.state and self.path != '/elsewhere':
            self.send_header('X-Linked-ETag', self.server.state['published'])

    def log_message(self, *args):
        pass
