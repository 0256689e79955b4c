"""A report of real runs in a real browser: no errors, curves to be seen, tabs, toggles, a phone, the dark."""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support import tiny_config

from rl_training.runtime.training import train
from rl_training.studies.report import write_report

pytestmark = pytest.mark.xdist_group("browser")  # one worker has the runs and the browser
ALGOS = ("ddpg", "sac", "td3")
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three algorithms, three seeds."""
    directory = tmp_path_factory.mktemp("study")
    for algo in ALGOS:
        for seed in (1, 2, 3):
            train(tiny_config(algo, directory / "runs", seed=seed, total_timesteps=60, eval_interval=20))
    write_report([directory / "runs"], directory / "report.html", title="Three by three")
    return directory / "report.html"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    driver = shutil.which("chromedriver")
    if importlib.util.find_spec("selenium") is None:
        pytest.skip("selenium is not installed")
    if chromium is None or driver is None:
        pytest.skip("no chromium with chromedriver is installed (Debian: apt-get install chromium chromium-driver)")
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    # chromium asks for a proxy of the machine even for files, unless told otherwise
    environment = {name: value for name, value in os.environ.items() if "proxy" not in name.lower()}
    session = webdriver.Chrome(options=options, service=Service(driver, env=environment))
    yield session
    session.quit()


@pytest.fixture
def page(browser: Any, report: Path) -> Any:
    """The report, freshly opened on a desk and in the light."""
    light(browser, True)
    resize(browser, 1280, 900)
    browser.get(report.as_uri())
    return browser


def resize(browser: Any, width: int, height: int, *, mobile: bool = False) -> None:
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": mobile}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)


def light(browser: Any, wanted: bool) -> None:
    scheme = [{"name": "prefers-color-scheme", "value": "light" if wanted else "dark"}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": scheme})


def drawn(series: int) -> str:
    """The lines, markers and areas of a group on the first tab; what stands in defs is drawn where it is used."""
    return f"#curves [data-series='{series}'] :is(path, use):not(defs *)"


def line(series: int) -> str:
    """The curve of a group."""
    return f"#curves [data-series='{series}'] > path"


def visible(page: Any, selector: str) -> list[bool]:
    """Of each element, whether it takes up space."""
    boxes = "return [...document.querySelectorAll(arguments[0])].map(e => e.getBoundingClientRect()).map(b => b.width > 0)"
    found: list[bool] = page.execute_script(boxes, selector)
    return found


def panels(page: Any) -> list[str]:
    shown = "return [...document.querySelectorAll('[role=tabpanel]')].filter(e => e.offsetHeight > 0).map(e => e.id)"
    found: list[str] = page.execute_script(shown)
    return found


def style(page: Any, selector: str, name: str) -> str:
    script = "return getComputedStyle(document.querySelector(arguments[0])).getPropertyValue(arguments[1])"
    value: str = page.execute_script(script, selector, name)
    return value


def test_it_loads_without_a_complaint_and_without_the_network(page: Any) -> None:
    assert page.title == "Three by three"
    for name in ("scores", "settings", "runs", "curves"):
        page.find_element("id", f"tab-{name}").click()
    assert page.get_log("browser") == []
    asked = [entry["message"] for entry in page.get_log("performance") if "Network.requestWillBeSent" in entry["message"]]
    assert not [message for message in asked if '"url":"http' in message or '"url":"ws' in message]


def test_curves_are_there_to_be_seen(page: Any) -> None:
    strokes = set()
    for series in range(len(ALGOS)):
        elements = page.find_elements("css selector", drawn(series))
        boxes = [(element.rect["width"], element.rect["height"]) for element in elements]
        assert sum(width > 100 and height > 1 for width, height in boxes) >= 2, boxes  # a line and a band
        strokes.add(style(page, line(series), "stroke"))
    assert len(strokes) == len(ALGOS), strokes


def test_tabs_by_mouse_and_by_keyboard(page: Any) -> None:
    from selenium.webdriver.common.keys import Keys

    assert panels(page) == ["curves"]
    page.find_element("id", "tab-scores").click()
    assert panels(page) == ["scores"]
    assert page.find_element("id", "tab-scores").get_attribute("aria-selected") == "true"
    page.find_element("id", "tab-scores").send_keys(Keys.ARROW_RIGHT)
    assert panels(page) == ["settings"]
    page.switch_to.active_element.send_keys(Keys.END)
    assert panels(page) == ["runs"]
    page.switch_to.active_element.send_keys(Keys.ARROW_RIGHT)
    assert panels(page) == ["curves"]
    assert page.switch_to.active_element.get_attribute("id") == "tab-curves"


def test_a_group_can_be_hidden_and_shown(page: Any) -> None:
    toggle = page.find_element("css selector", "[data-toggle='1']")
    assert all(visible(page, drawn(1)))
    toggle.click()
    assert not any(visible(page, drawn(1)))
    assert all(visible(page, drawn(0)))
    assert toggle.get_attribute("aria-pressed") == "false"
    page.find_element("id", "tab-scores").click()
    assert not any(visible(page, "#scores tr[data-series='1']"))
    toggle.send_keys(" ")
    assert all(visible(page, "#scores tr[data-series='1']"))


def test_dark_and_light(page: Any) -> None:
    def colours() -> tuple[str, ...]:
        text = "#curves svg.plot text"
        return (
            style(page, "body", "background-color"),
            style(page, text, "fill"),
            style(page, line(0), "stroke"),
        )

    by_day = colours()
    page.find_element("id", "theme").click()
    by_night = colours()
    assert all(day != night for day, night in zip(by_day, by_night, strict=True)), (by_day, by_night)
    assert page.find_element("id", "theme").get_attribute("aria-pressed") == "true"
    page.find_element("id", "theme").click()
    assert colours() == by_day
    light(page, False)
    page.refresh()
    assert colours() == by_night, "the system's preference decides at first"


@pytest.mark.parametrize("width", [320, 390])
def test_a_phone_scrolls_in_one_direction_only(page: Any, width: int) -> None:
    resize(page, width, 800, mobile=True)
    for name in ("curves", "scores", "settings", "runs"):
        page.execute_script("document.getElementById(arguments[0]).click()", f"tab-{name}")
        assert page.execute_script("return document.documentElement.scrollWidth") <= width, name


def test_everything_is_printed(page: Any) -> None:
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    try:
        assert panels(page) == ["curves", "scores", "settings", "runs"]
        assert style(page, "nav", "display") == "none"
    finally:
        page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})


def test_tables_and_links(page: Any, report: Path) -> None:
    page.find_element("id", "tab-scores").click()
    rows = page.find_elements("css selector", "#scores tbody tr th")
    assert [row.text for row in rows[:3]] == list(ALGOS)
    page.find_element("id", "tab-runs").click()
    links = [link.get_attribute("href") for link in page.find_elements("css selector", "#runs a")]
    assert len(links) == len(ALGOS) * 3
    assert {link.rstrip("/") for link in links} == {run.as_uri() for run in (report.parent / "runs").iterdir()}


def test_the_agent_at_play_can_be_paused_or_its_absence_is_told(page: Any) -> None:
    films = page.find_elements("css selector", "[data-film]")
    if not films:  # no pygame here
        assert "No animation" in page.find_element("id", "curves").text
        return
    image = page.find_element("id", films[0].get_attribute("data-film"))
    assert image.get_attribute("src") == image.get_attribute("data-moving")
    assert page.execute_script("return arguments[0].naturalWidth", image) > 0
    films[0].click()
    assert image.get_attribute("src") == image.get_attribute("data-still")
