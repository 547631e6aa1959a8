"""The page in headless Chromium; skipped where Chromium, its driver or selenium is absent, and in CI."""

import json
import os
import shutil

import pytest
import report_cases as cases

from theta0.reports import write_page
from theta0.reports.wording import printable

if os.environ.get("CI"):
    pytest.skip("no browser in CI", allow_module_level=True)
webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
if not CHROMIUM or not DRIVER:
    pytest.skip("chromium or chromedriver is not installed", allow_module_level=True)

SWITCHES = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
RESULTS = {
    "diagnosis": cases.deep_sigmoid(),
    "treatment": cases.kept(100),
    "not_kept": cases.not_kept(),
    "hostile": cases.hostile(),
    "many_findings": cases.many_findings(),
    "empty": cases.empty(),
}
OPENED = "document.querySelectorAll('details').forEach(e => e.open = true)"
WIDER = """
    return [...document.querySelectorAll("body *")].filter(e => !e.closest(".scroll, svg"))
        .filter(e => e.getBoundingClientRect().right > window.innerWidth + 0.5).map(e => e.outerHTML.slice(0, 80))
"""
FAINT = """
    const rgb = c => c.match(/[\\d.]+/g).map(Number);
    const light = c => rgb(c).slice(0, 3).map(v => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
        .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
    const ground = e => { const c = getComputedStyle(e).backgroundColor, a = rgb(c);
        return a.length === 4 && a[3] === 0 && e.parentElement ? ground(e.parentElement) : c; };
    const worst = [];
    for (const e of document.querySelectorAll("body *")) {
        if (e.tagName.toLowerCase() === "style") continue;
        if (![...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim())) continue;
        const style = getComputedStyle(e), ink = e.closest("svg") ? style.fill : style.color;
        const [a, b] = [light(ink), light(ground(e))].sort((x, y) => y - x);
        if ((a + 0.05) / (b + 0.05) < 4.5) worst.push(e.outerHTML.slice(0, 120));
    }
    return worst;
"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for switch in (*SWITCHES, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(switch)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    yield driver
    driver.quit()


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    return {name: write_page(folder / f"{name}.html", result, target=cases.TARGET) for name, result in RESULTS.items()}


def show(browser, page, width=1200, mode="light"):
    size = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    feature = {"name": "prefers-color-scheme", "value": mode}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
    for log in ("browser", "performance"):
        browser.get_log(log)
    browser.get(page.as_uri())
    return page.as_uri()


def requested(browser):
    events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    return [e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"]


@pytest.mark.parametrize("name", RESULTS)
def test_no_error_no_request_and_every_finding_is_seen(name, browser, pages):
    address = show(browser, pages[name])
    assert browser.get_log("browser") == []
    assert {url for url in requested(browser) if not url.startswith("data:")} == {address}
    assert browser.execute_script("return performance.getEntriesByType('resource').length") == 0
    browser.execute_script(OPENED)
    seen = " ".join(browser.execute_script("return document.body.innerText").split())
    result = RESULTS[name]
    diagnoses = [result] if isinstance(result, cases.Diagnosis) else [result.before, result.after]
    for finding in (finding for diagnosis in diagnoses for finding in diagnosis.findings):
        for part in (finding.code, finding.message, finding.remedy, finding.source):
            assert " ".join(printable(part).split()) in seen


@pytest.mark.parametrize("name", RESULTS)
@pytest.mark.parametrize("width", [320, 390, 1200])
def test_nothing_is_wider_than_the_screen(name, width, browser, pages):
    show(browser, pages[name], width)
    browser.execute_script(OPENED)
    assert browser.execute_script("return window.innerWidth") == width
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    assert browser.execute_script(WIDER) == []


@pytest.mark.parametrize("mode", ["light", "dark"])
@pytest.mark.parametrize("name", ["diagnosis", "treatment", "not_kept"])
def test_text_stands_out_from_its_ground(name, mode, browser, pages):
    show(browser, pages[name], mode=mode)
    browser.execute_script(OPENED)
    assert browser.execute_script(FAINT) == []
