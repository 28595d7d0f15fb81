"""Labs in Firefox, from disk: a copy of a page presses its own button and tells what it shows.

Firefox is started without a driver. The page hands its result over by leading to an address of
this test's own server.
"""

import json
import shutil
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.waiting import wait_until

pytestmark = [pytest.mark.exhaustive]
LONGEST_S = 300
PRESS = """
const told = (result) => {
  location.href = `http://127.0.0.1:PORT/?result=${encodeURIComponent(JSON.stringify(result))}`;
};
const violations = [];
addEventListener("securitypolicyviolation", (event) => violations.push(event.violatedDirective));
addEventListener("load", () => {
  const bar = document.querySelectorAll(".lab-bar")[2];
  const status = bar.querySelector(".lab-status");
  bar.querySelector("button").click();
  setInterval(() => {
    const said = status.textContent;
    if (bar.classList.contains("running") || !said || said.startsWith("starting")) return;
    const output = bar.closest(".cell").querySelector(".lab-output");
    told({ said, output: output?.textContent ?? "", violations });
  }, 200);
});
"""


@pytest.fixture
def firefox():
    path = shutil.which("firefox-esr") or shutil.which("firefox")
    if path is None:
        pytest.skip("needs Firefox, and found none (sudo apt-get install firefox-esr)")
    return path


def test_a_cell_runs_in_firefox(firefox, site, tmp_path):
    page = site / "book/metrics/bleu.html"
    if "labs/labs.js" not in page.read_text("utf-8"):
        pytest.skip("the book is built without labs (make labs says why)")
    results = []

    class Receiver(BaseHTTPRequestHandler):
        def do_GET(self):
            results.extend(parse_qs(urlsplit(self.path).query).get("result", []))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_):
            pass

    server = HTTPServer(("127.0.0.1", 0), Receiver)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    copy = page.with_name("firefox-test.html")
    script = page.with_name("firefox-test.js")
    try:
        script.write_text(PRESS.replace("PORT", str(server.server_port)), "utf-8")
        tag = '<script src="firefox-test.js"></script></body>'
        copy.write_text(page.read_text("utf-8").replace("</body>", tag), "utf-8")
        told = visit(firefox, copy, tmp_path, results)
    finally:
        copy.unlink(missing_ok=True)
        script.unlink(missing_ok=True)
        server.shutdown()
    assert told["said"] == "done" and told["violations"] == []
    assert "brevity_penalty" in told["output"]


def visit(firefox: str, page: Path, profile: Path, results: list[str]) -> dict:
    command = [firefox, "--headless", "--no-remote", "--profile", str(profile), f"file://{page}"]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    program = subprocess.Popen(
        command, env={"HOME": str(profile), "PATH": "/usr/bin:/bin"}, **quiet
    )
    try:
        wait_until(lambda: results or program.poll() is not None, LONGEST_S)
    finally:
        program.terminate()
        program.wait()
    assert results, "Firefox has ended"
    return json.loads(results[0])
