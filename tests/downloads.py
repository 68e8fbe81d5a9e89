"""Archives, and a web server that fails as real ones do, for the tests of downloads."""
import io
import tarfile
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
        if plan == 'busy':
            return self.send_error(503)
        if plan == 'gone':
            return self.send_error(404)
        if 'Range' in self.headers and plan != 'no ranges':
            start = int(self.headers['Range'][6:-1])
            state['resumed'] += 1
            if start >= len(content):
                self.send_response(416)
                self.send_header('Content-Range', f'bytes */{len(content)}')
                self.end_headers()
                return
        self.send_response(206 if start else 200)
        self.send_header('Content-Length', str(len(content) - start))
        self.end_headers()
        self.wfile.write(content[start:] if plan != 'drop' else content[start:start + len(content) // 3])

    def log_message(self, *args):
        pass
