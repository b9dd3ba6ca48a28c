"""The profiler plugin's pages where there is no network.

torch-tb-profiler 0.4.3 ships its pages but for two scripts: the polyfill without which its trace
viewer stays empty in browsers of today, and Google's charts. The polyfill comes from a file beside
this one (webcomponents.js 0.7.24, the version that the page asks for; BSD, the Polymer authors).
Charts that cannot be had are drawn by a small script of our own; Google's may not be shipped.
"""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

_HERE = Path(__file__).parent
#: In the plugin's page of traces, and the file that stands for it.
_POLYFILL_ELSEWHERE = (
    b"https://cdnjs.cloudflare.com/ajax/libs/webcomponentsjs/0.7.24/webcomponents.min.js"
)
_POLYFILL = "webcomponents.min.js"
#: In all its other pages; what follows it there asks whether it came.
_CHARTS_ELSEWHERE = b'<script src="https://www.gstatic.com/charts/loader.js"></script>'
_CHARTS = "tensorboard_charts.js"
_CHARTS_IF_NONE_CAME = (
    b"<script>window.google || document.write('<script src=%s><\\/script>')</script>"
    % _CHARTS.encode()
)


def fix_pages(plugin: Any) -> None:
    """Has the plugin serve the scripts, and pages that ask for them."""
    routes = plugin.get_plugin_apps

    def fixed_routes(self: Any) -> dict[str, Any]:
        found: dict[str, Any] = routes(self)
        pages = Path(inspect.getfile(plugin)).parent / "static"
        trace, index = pages / "trace_embedding.html", pages / "index.html"
        found |= {
            f"/{trace.name}": _serving(self, trace, _POLYFILL_ELSEWHERE, _POLYFILL.encode()),
            f"/{index.name}": _serving(
                self, index, _CHARTS_ELSEWHERE, _CHARTS_ELSEWHERE + _CHARTS_IF_NONE_CAME
            ),
            f"/{_POLYFILL}": _serving(self, _HERE / _POLYFILL),
            f"/{_CHARTS}": _serving(self, _HERE / _CHARTS),
        }
        return found

    plugin.get_plugin_apps = fixed_routes


def _serving(plugin: Any, path: Path, old: bytes = b"", new: bytes = b"") -> Any:
    """A WSGI application that answers with a file, as the plugin does with its own; in it what is
    old is replaced."""
    import werkzeug

    kind = "text/html" if path.suffix == ".html" else "application/javascript"

    @werkzeug.Request.application
    def answer(request: Any) -> Any:
        return werkzeug.Response(
            path.read_bytes().replace(old, new), content_type=kind, headers=list(plugin.headers)
        )

    return answer
