"""Headless Chromium, driven by the WebDriver protocol over plain HTTP."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

#: No page takes that long, however loaded the machine: it hangs.
HANGS_AFTER_S = 900.0
#: Why a test that needs a browser is skipped; empty where one is here.
NEEDED = (
    ""
    if shutil.which("chromium") and shutil.which("chromedriver")
    else "chromium and chromedriver are not installed (Debian: chromium chromium-driver)"
)
#: Keys by their names in the WebDriver protocol.
KEYS = {
    "Tab": "\ue004", "Enter": "\ue007", "Shift": "\ue008", "Control": "\ue009", "Escape": "\ue00c",
    "Space": "\ue00d", "End": "\ue010", "Home": "\ue011", "Left": "\ue012", "Up": "\ue013",
    "Right": "\ue014", "Down": "\ue015",
}  # fmt: skip


def wait_for(what: Callable[[], Any], describe: Callable[[], str]) -> Any:
    """The first true answer; fails with a description after a while."""
    deadline = time.monotonic() + HANGS_AFTER_S
    while not (answer := what()):
        assert time.monotonic() < deadline, describe()
        time.sleep(0.1)
    return answer


class Browser:
    """One page at a time; what its console says is kept."""

    def __init__(
        self, *, width: int = 1500, height: int = 1200, phone: bool = False,
        arguments: Sequence[str] = (),
    ) -> None:  # fmt: skip
        self._driver = subprocess.Popen(
            ["chromedriver", "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            text=True,
        )  # fmt: skip
        assert self._driver.stdout is not None
        port = ""
        while not port:  # "ChromeDriver was started successfully on port 12345."
            line = self._driver.stdout.readline()
            assert line, "chromedriver ended"
            if "successfully on port" in line:
                port = line.rpartition(" ")[2].strip(". \n")
        self._address = f"http://127.0.0.1:{port}"
        options: dict[str, Any] = {
            "args": ["--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu",
                     f"--window-size={width},{height}", *arguments],
        }  # fmt: skip
        if phone:
            metrics = {"width": width, "height": height, "pixelRatio": 2, "touch": True}
            options["mobileEmulation"] = {"deviceMetrics": metrics}
        wanted = {
            "browserName": "chrome",
            "goog:chromeOptions": options,
            "goog:loggingPrefs": {"browser": "ALL"},
        }
        session = self._ask("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
        self._session = f"/session/{session['sessionId']}"

    def _ask(self, method: str, path: str, body: object = None) -> Any:
        request = urllib.request.Request(
            self._address + path,
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=HANGS_AFTER_S) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            with error:
                raise AssertionError(error.read().decode()[:500]) from None

    def open(self, address: str) -> None:
        """Goes there and waits until it is loaded."""
        self._ask("POST", f"{self._session}/url", {"url": address})

    def run(self, script: str, *arguments: object) -> Any:
        """What a script returns in the page."""
        body = {"script": script, "args": arguments}
        return self._ask("POST", f"{self._session}/execute/sync", body)

    def into(self, selector: str) -> None:
        """From now on in that frame, until another page is opened."""
        self._ask("POST", f"{self._session}/frame", {"id": self._element(selector, 0)})

    def text(self) -> str:
        """What can be read on the page."""
        return str(self.run("return document.body.innerText"))

    def wait_for_text(self, *texts: str) -> str:
        """The page's text once all of these are in it."""
        wait_for(
            lambda: all(text in self.text() for text in texts),
            lambda: f"{texts} are not all in the page:\n{self.text()[:3000]}",
        )
        return self.text()

    def press(self, *keys: str) -> None:
        """Presses keys one after the other, as a hand does; "Shift+Left" holds Shift."""
        actions: list[dict[str, Any]] = []
        for key in keys:
            held = [KEYS.get(part, part) for part in (key.split("+") if len(key) > 1 else [key])]
            actions += [{"type": "keyDown", "value": value} for value in held]
            actions += [{"type": "keyUp", "value": value} for value in reversed(held)]
        self._act({"type": "key", "id": "keyboard", "actions": actions})

    def click(self, selector: str, *, nth: int = 0, x: int = 0, y: int = 0) -> None:
        """Clicks with the mouse on the middle of an element, or beside it."""
        move = {"type": "pointerMove", "origin": self._element(selector, nth), "x": x, "y": y}
        press: list[dict[str, Any]] = [
            {"type": "pointerDown", "button": 0}, {"type": "pointerUp", "button": 0},
        ]  # fmt: skip
        self._act({"type": "pointer", "id": "mouse", "actions": [move, *press]})

    def wheel(self, selector: str, *, by: int, nth: int = 0, held: str = "") -> None:
        """Turns the wheel over an element, downwards for positive `by`."""
        turn = {"type": "scroll", "origin": self._element(selector, nth), "x": 0, "y": 0,
                "deltaX": 0, "deltaY": by}  # fmt: skip
        key = KEYS.get(held)
        keyboard = {"type": "key", "id": "keyboard", "actions": [
            {"type": "keyDown", "value": key}, {"type": "pause"}, {"type": "keyUp", "value": key},
        ]}  # fmt: skip
        pauses: list[dict[str, Any]] = [{"type": "pause"}] if held else []
        wheel = {"type": "wheel", "id": "wheel", "actions": [*pauses, turn]}
        self._act(*([keyboard] if held else []), wheel)

    def _element(self, selector: str, nth: int) -> Any:
        found = self.run(
            "const e = document.querySelectorAll(arguments[0])[arguments[1]];"
            "if (e) e.scrollIntoView({block: 'center'}); return e;", selector, nth,
        )  # fmt: skip
        assert found is not None, f"no {selector} on the page"
        return found

    def _act(self, *sources: dict[str, Any]) -> None:
        self._ask("POST", f"{self._session}/actions", {"actions": sources})

    def console(self) -> list[str]:
        """What the console said since it was last asked."""
        body = {"type": "browser"}
        return [entry["message"] for entry in self._ask("POST", f"{self._session}/se/log", body)]

    def prefer(self, **features: str) -> None:
        """Media features of the page, as prefers_color_scheme="dark"; media="print" for paper."""
        media = features.pop("media", "")
        named = [{"name": n.replace("_", "-"), "value": v} for n, v in features.items()]
        self.ask_browser("Emulation.setEmulatedMedia", media=media, features=named)

    def ask_browser(self, command: str, **parameters: Any) -> Any:
        """A command of the DevTools protocol."""
        body = {"cmd": command, "params": parameters}
        return self._ask("POST", f"{self._session}/goog/cdp/execute", body)

    def screenshot(self, path: Path, *, whole: bool = False) -> None:
        """What is seen, or the whole page, as PNG."""
        if whole:
            found = self.ask_browser("Page.captureScreenshot", captureBeyondViewport=True)["data"]
        else:
            found = self._ask("GET", f"{self._session}/screenshot")
        path.write_bytes(base64.b64decode(found))

    def close(self) -> None:
        """Ends the browser and its driver."""
        try:
            self._ask("DELETE", self._session)
        finally:
            self._driver.terminate()
            self._driver.communicate()
