"""TensorBoard as its command starts it, on loopback, with no script from elsewhere.

The profiler plugin's pages load two libraries from the network; here they come from files beside:
python tensorboard_server.py LOGDIR CHARTS_JS [WEBCOMPONENTS_JS]. Prints the address, then serves
until its standard input closes.
"""

import gzip
import sys
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

#: What the plugin's pages load from elsewhere, and the path that stands for it.
CHARTS = (b"https://www.gstatic.com/charts/loader.js", b"/local/charts.js")
COMPONENTS = (
    b"https://cdnjs.cloudflare.com/ajax/libs/webcomponentsjs/0.7.24/webcomponents.min.js",
    b"/local/webcomponents.js",
)
Start = Callable[..., Any]


def with_local_scripts(app: Any, scripts: dict[str, Path]) -> Any:
    """A WSGI application whose pages name local scripts, and which serves them."""

    def serve(environ: dict[str, Any], start: Start) -> Iterable[bytes]:
        path = environ["PATH_INFO"]
        if path in scripts:
            start("200 OK", [("Content-Type", "application/javascript")])
            return [scripts[path].read_bytes()]
        if not path.endswith(".html"):
            pages: Iterable[bytes] = app(environ, start)
            return pages
        told: list[Any] = []
        body = b"".join(app(environ, lambda status, headers, *rest: told.extend((status, headers))))
        if body[:2] == b"\x1f\x8b":
            body = gzip.decompress(body)
        for there, here in (CHARTS, COMPONENTS):
            body = body.replace(there, here)
        status, headers = told
        kept = [item for item in headers if item[0] not in ("Content-Length", "Content-Encoding")]
        start(status, [*kept, ("Content-Length", str(len(body)))])
        return [body]

    return serve


def main(logdir: str, charts: str, components: str | None = None) -> None:
    from tensorboard import default, program
    from tensorboard.util import tb_logging

    tb_logging.get_logger().setLevel("ERROR")
    scripts = {CHARTS[1].decode(): Path(charts)}
    if components is not None:
        scripts[COMPONENTS[1].decode()] = Path(components)

    class Server(program.WerkzeugServer):  # type: ignore[misc]  # tensorboard has no annotations
        def __init__(self, app: Any, flags: Any) -> None:
            super().__init__(with_local_scripts(app, scripts), flags)

    board = program.TensorBoard(plugins=default.get_plugins(), server_class=Server)
    board.configure(argv=["", "--logdir", logdir, "--host", "127.0.0.1", "--port", "0",
                          "--load_fast", "false", "--reload_interval", "2"])  # fmt: skip
    print(board.launch(), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main(*sys.argv[1:])
