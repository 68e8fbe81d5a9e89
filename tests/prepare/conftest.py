import threading
from http.server import HTTPServer

import pytest
from downloads import Flaky


@pytest.fixture
def serve():
    """serve(content, plan): a server that fails as the plan says, with its url."""
    servers = []

    def start(content, plan=('fine',), **state):
        servers.append(HTTPServer(('127.0.0.1', 0), Flaky))
        servers[-1].state = {'content': content, 'plan': list(plan), 'resumed': 0} | state
        servers[-1].url = f'http://127.0.0.1:{servers[-1].server_port}/file'
        threading.Thread(target=servers[-1].serve_forever, args=[0.01], daemon=True).start()
        return servers[-1]
    yield start
    for server in servers:
        server.shutdown()
