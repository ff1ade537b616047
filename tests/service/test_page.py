"""The page in a real browser: typing, choosing, reading the answer, and what goes wrong."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from distclust.retrieval import BayesianSets
from distclust.service import Settings
from tests.service.conftest import ODD, Slow, served

BROWSER, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
TOKEN = "a-long-enough-token"

pytestmark = pytest.mark.skipif(
    BROWSER is None or DRIVER is None, reason="chromium and chromedriver are not installed"
)


@pytest.fixture(scope="module")
def driver() -> Iterator[Any]:
    """A browser that knows this machine only."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service as Driver

    options = webdriver.ChromeOptions()
    options.binary_location = BROWSER or ""
    for argument in (
        "--headless=new",
        "--no-sandbox",
        "--disable-dev-shm-usage",
        "--disable-background-networking",
        "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
    ):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    found = webdriver.Chrome(options=options, service=Driver(DRIVER))
    try:
        yield found
    finally:
        found.quit()


@pytest.fixture(scope="module")
def url(sets: BayesianSets) -> Iterator[str]:
    with served(sets, Settings(title="things", most_results=60)) as (found, _):
        yield found


class Page:
    """What a person does and sees."""

    def __init__(self, driver: Any, url: str) -> None:
        self.driver = driver
        self.url = url

    def open(
        self, hash: str = "", width: int = 1200, height: int = 900, dark: bool = False
    ) -> None:
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": scheme})
        self.driver.get("about:blank")
        self.driver.get_log("browser")
        self.driver.get(self.url + hash)

    def until(self, condition: Callable[[], Any]) -> Any:
        """Wait until something is so; elements may be replaced meanwhile."""
        from selenium.common.exceptions import StaleElementReferenceException
        from selenium.webdriver.support.ui import WebDriverWait

        waiting = WebDriverWait(
            self.driver, 30, 0.02, ignored_exceptions=[StaleElementReferenceException]
        )
        return waiting.until(lambda _: condition())

    def find(self, selector: str) -> Any:
        return self.driver.find_element("css selector", selector)

    def texts(self, selector: str) -> list[str]:
        script = "return [...document.querySelectorAll(arguments[0])].map(e => e.textContent)"
        found: list[str] = self.driver.execute_script(script, selector)
        return found

    def type(self, *keys: str) -> None:
        self.find("#text").send_keys(*keys)

    def add(self, text: str, name: str) -> None:
        """Type a part of a name and take the first completion."""
        from selenium.webdriver.common.keys import Keys

        before = self.chosen()
        self.type(text, Keys.ENTER)
        self.until(lambda: self.chosen() == [*before, name])

    def chosen(self) -> list[str]:
        return self.texts("#chips .chip bdi")

    def offered(self) -> list[str]:
        return self.texts("#options:not([hidden]) li")

    def ranked(self) -> list[str]:
        return self.texts("#results .row .name bdi")

    def notice(self) -> str:
        return " ".join(self.texts("#notice:not([hidden])"))

    def shows(self, sets: BayesianSets, items: list[str], k: int = 20, own: bool = True) -> bool:
        """Whether the answer on the page is that of these items, and not busy."""
        wanted = [str(name) for name in sets.query(items, k, exclude_query=not own).ids]
        is_busy = self.find("#answer").get_attribute("aria-busy") == "true"
        return not is_busy and self.ranked() == wanted

    def state(self) -> dict[str, list[str]]:
        return parse_qs(urlsplit(self.driver.current_url).fragment)

    def complaints(self) -> list[str]:
        """What the browser has against the page."""
        return [entry["message"] for entry in self.driver.get_log("browser")]


@pytest.fixture
def page(driver: Any, url: str) -> Page:
    opened = Page(driver, url)
    opened.open()
    opened.until(lambda: opened.texts("#examples button"))
    return opened


def keys() -> Any:
    from selenium.webdriver.common.keys import Keys

    return Keys


# ---- asking --------------------------------------------------------------------------------------


def test_page__starts_with_the_corpus_and_examples(page: Page) -> None:
    assert page.find("#title").text == "things"
    assert page.find("#shape").text == "76 items · 48 features"
    assert page.find("#empty").is_displayed()
    assert not page.find("#columns").is_displayed()
    name = page.texts("#examples button")[1]
    page.driver.find_elements("css selector", "#examples button")[1].click()
    page.until(lambda: page.chosen() == [name])
    assert page.complaints() == []


def test_page__completes_as_one_types_and_ranks(page: Page, sets: BayesianSets) -> None:
    page.type("hero")
    page.until(lambda: len(page.offered()) == 8)
    assert page.offered()[:2] == ["heron 00", "heron 01"]
    assert page.texts("#options mark")[0] == "hero"
    page.type("n 03")
    page.until(lambda: page.offered() == ["heron 03"])
    page.type(keys().ENTER)
    page.until(lambda: page.shows(sets, ["heron 03"]))
    page.add("heron 04", "heron 04")
    page.until(lambda: page.shows(sets, ["heron 03", "heron 04"]))
    ranking = sets.query(["heron 03", "heron 04"], 20)
    assert page.texts("#results .score") == [
        f"{score:.2f}".replace("-", "−") for score in ranking.log_scores
    ]
    assert page.find("#text").get_attribute("value") == ""
    assert page.offered() == []
    assert page.complaints() == []


def test_page__answer_changes_as_items_come_and_go(page: Page, sets: BayesianSets) -> None:
    page.add("heron 00", "heron 00")
    page.add("violin 00", "violin 00")
    page.until(lambda: page.shows(sets, ["heron 00", "violin 00"]))
    page.find("[aria-label='Remove heron 00']").click()
    page.until(lambda: page.shows(sets, ["violin 00"]))
    other = page.ranked()[1]
    page.find(f"[aria-label='Add {other}']").click()
    page.until(lambda: page.shows(sets, ["violin 00", other]))
    page.type(keys().BACKSPACE)
    page.until(lambda: page.shows(sets, ["violin 00"]))
    page.type(keys().BACKSPACE)
    page.until(lambda: page.find("#empty").is_displayed())
    assert page.state() == {}


def test_page__draws_the_line_of_the_suggested_size(page: Page, sets: BayesianSets) -> None:
    page.open("#item=otter+00&item=otter+01&k=50")
    page.until(lambda: page.shows(sets, ["otter 00", "otter 01"], 50))
    ranking = sets.query(["otter 00", "otter 01"], 50)
    assert 0 < ranking.suggested_size < 50
    classes = page.driver.execute_script(
        "return [...document.querySelectorAll('#results > li')].map(e => e.className)"
    )
    n = ranking.suggested_size
    assert classes == ["row"] * n + ["cut"] + ["row out"] * (50 - n)
    assert page.texts(".cut b") == [f"{n} belong"]


def test_page__shows_more_of_a_large_set(page: Page, sets: BayesianSets) -> None:
    page.open("#item=otter+00&item=otter+01&k=5")
    page.until(lambda: page.shows(sets, ["otter 00", "otter 01"], 5))
    page.find(".cut .link").click()
    page.until(lambda: page.shows(sets, ["otter 00", "otter 01"], 10))
    assert page.state()["k"] == ["10"]


def test_page__says_why(page: Page, sets: BayesianSets) -> None:
    items = ["maple 00", "maple 01"]
    page.open("#item=maple+00&item=maple+01&k=10")
    page.until(lambda: page.shows(sets, items, 10))
    why = sets.explain(items, 10)
    assert page.texts("#features bdi") == [feature.name for feature in why.features]
    first = why.features[0]
    told = f"{round(first.in_query * 2)} of 2 chosen, {100 * first.in_corpus:.0f}% of all"
    assert page.texts("#features .quiet")[0] == told
    page.find("#of-group").click()
    assert page.texts("#features bdi") == [feature.name for feature in why.group_features]
    assert page.find("#of-group").get_attribute("aria-pressed") == "true"
    page.driver.find_elements("css selector", ".more")[2].click()
    reasons = why.results[2]
    selector = f"#reasons-{why.ranking.rows[2]}"
    assert page.find(selector).is_displayed()
    assert page.texts(f"{selector} bdi") == [name for name, _ in reasons.features]
    weights = [*(weight for _, weight in reasons.features), reasons.others]
    assert page.texts(f"{selector} li > span:last-child") == [
        f"{weight:+.2f}".replace("-", "−") for weight in weights
    ]
    page.driver.find_elements("css selector", ".more")[2].click()
    assert not page.find(selector).is_displayed()


def test_page__can_leave_out_the_chosen(page: Page, sets: BayesianSets) -> None:
    page.add("maple 00", "maple 00")
    page.until(lambda: page.shows(sets, ["maple 00"]))
    assert page.texts(".mine") == ["chosen"]
    page.find("#without").click()
    page.until(lambda: page.shows(sets, ["maple 00"], own=False))
    assert page.texts(".mine") == []
    assert page.state()["own"] == ["0"]


# ---- the keyboard --------------------------------------------------------------------------------


def test_keyboard__chooses_among_completions(page: Page) -> None:
    text, Keys = page.find("#text"), keys()
    assert page.driver.switch_to.active_element == text
    page.type("violin")
    page.until(lambda: len(page.offered()) == 8)
    assert text.get_attribute("aria-expanded") == "true"

    def active() -> str:
        chosen = page.find(f"#{text.get_attribute('aria-activedescendant')}")
        assert chosen.get_attribute("aria-selected") == "true"
        assert len(page.texts("#options [aria-selected=true]")) == 1
        return str(chosen.text)

    assert active() == "violin 00"
    page.type(Keys.ARROW_DOWN, Keys.ARROW_DOWN)
    assert active() == "violin 02"
    page.type(Keys.ARROW_UP)
    assert active() == "violin 01"
    page.type(Keys.ARROW_UP, Keys.ARROW_UP)
    assert active() == "violin 07"  # around the end
    page.type(Keys.ENTER)
    page.until(lambda: page.chosen() == ["violin 07"])


def test_keyboard__escape_closes_then_clears(page: Page) -> None:
    Keys = keys()
    page.type("violin")
    page.until(lambda: page.offered())
    page.type(Keys.ESCAPE)
    assert page.offered() == []
    assert page.find("#text").get_attribute("value") == "violin"
    assert page.find("#text").get_attribute("aria-expanded") == "false"
    page.type(Keys.ESCAPE)
    assert page.find("#text").get_attribute("value") == ""
    page.type(Keys.ENTER)
    assert page.chosen() == []


def test_keyboard__reaches_everything(page: Page, sets: BayesianSets) -> None:
    Keys = keys()
    page.add("teapot 00", "teapot 00")
    page.until(lambda: page.shows(sets, ["teapot 00"]))
    seen = []
    for _ in range(12):
        page.driver.switch_to.active_element.send_keys(Keys.TAB)
        element = page.driver.switch_to.active_element
        seen.append(element.get_attribute("aria-label") or element.get_attribute("id"))
        outline = page.driver.execute_script(
            "return getComputedStyle(arguments[0]).outlineStyle", element
        )
        assert outline != "none"
    assert seen[:4] == ["size", "without", "share", f"Reasons of {page.ranked()[0]}"]
    assert f"Add {page.ranked()[1]}" in seen
    page.driver.switch_to.active_element.send_keys(Keys.ENTER)


def test_keyboard__says_that_nothing_has_such_a_name(page: Page) -> None:
    page.type("qqq", keys().ENTER)
    page.until(lambda: page.offered() == ["No other item has “qqq” in its name"])
    assert page.chosen() == []


def test_completion__does_not_offer_what_is_chosen(page: Page) -> None:
    page.add("heron 00", "heron 00")
    page.type("heron 0")
    page.until(lambda: page.offered())
    assert "heron 00" not in page.offered()


# ---- addresses -----------------------------------------------------------------------------------


def test_address__is_shared_and_goes_back(page: Page, sets: BayesianSets) -> None:
    page.add("heron 00", "heron 00")
    page.add("otter 05", "otter 05")
    page.until(lambda: page.shows(sets, ["heron 00", "otter 05"]))
    address = page.driver.current_url
    assert page.state() == {"item": ["heron 00", "otter 05"]}
    page.driver.back()
    page.until(lambda: page.shows(sets, ["heron 00"]))
    page.driver.get("about:blank")
    page.driver.get(address)
    page.until(lambda: page.shows(sets, ["heron 00", "otter 05"]))
    assert page.chosen() == ["heron 00", "otter 05"]


@pytest.mark.parametrize("name", ODD)
def test_names__are_text_whatever_is_in_them(page: Page, sets: BayesianSets, name: str) -> None:
    page.add(name[:9], name)
    page.until(lambda: page.shows(sets, [name]))
    assert page.state()["item"] == [name]
    page.driver.refresh()
    page.until(lambda: page.shows(sets, [name]))
    assert page.chosen() == [name]
    assert page.driver.execute_script("return document.images.length") == 0
    assert page.complaints() == []


# ---- what goes wrong -----------------------------------------------------------------------------


def test_unknown_item__is_told_with_suggestions(page: Page, sets: BayesianSets) -> None:
    page.open("#item=heron+00&item=herron+07")
    page.until(lambda: "no item called “herron 07”" in page.notice())
    assert page.texts(".chip.bad bdi") == ["herron 07"]
    suggestions = page.texts("#notice .pill")
    assert suggestions[0] == "heron 07"
    page.find("#notice .pill").click()
    page.until(lambda: page.shows(sets, ["heron 00", "heron 07"]))
    assert page.notice() == ""
    assert page.chosen() == ["heron 00", "heron 07"]


def test_unknown_item__can_be_removed(page: Page, sets: BayesianSets) -> None:
    page.open("#item=heron+00&item=zzzz")
    page.until(lambda: "zzzz" in page.notice())
    page.find("#notice .link").click()
    page.until(lambda: page.shows(sets, ["heron 00"]))


def test_token__is_asked_for_and_kept_out_of_the_address(driver: Any, sets: BayesianSets) -> None:
    Keys = keys()
    with served(sets, Settings(token=TOKEN)) as (url, _):
        page = Page(driver, url)
        page.open("#item=heron+00")
        page.until(lambda: page.find("#gate").is_displayed())
        assert page.driver.switch_to.active_element == page.find("#token")
        page.find("#token").send_keys("not the one", Keys.ENTER)
        page.until(lambda: "not the one of this service" in page.notice())
        page.find("#token").send_keys(TOKEN, Keys.ENTER)
        page.until(lambda: page.shows(sets, ["heron 00"]))
        assert not page.find("#gate").is_displayed()
        assert TOKEN not in page.driver.current_url


def test_token__may_come_with_the_address(driver: Any, sets: BayesianSets) -> None:
    with served(sets, Settings(token=TOKEN)) as (url, _):
        page = Page(driver, url)
        page.open(f"#item=heron+00&token={TOKEN}")
        page.until(lambda: page.shows(sets, ["heron 00"]))
        assert page.state() == {"item": ["heron 00"]}
        page.driver.refresh()
        page.until(lambda: page.shows(sets, ["heron 00"]))


def test_service_that_is_gone__is_told_and_asked_again(driver: Any, sets: BayesianSets) -> None:
    page = Page(driver, "")
    with served(sets, Settings()) as (url, _):
        page.url = url
        page.open("#item=heron+00")
        page.until(lambda: page.shows(sets, ["heron 00"]))
    page.find("#without").click()
    page.until(lambda: "cannot be reached" in page.notice())
    assert page.texts("#notice .link") == ["Try again"]
    assert page.ranked()  # what there was is still there, and looks old
    assert "stale" in page.find("#answer").get_attribute("class")


def test_busy_service__is_waited_for(driver: Any, sets: BayesianSets) -> None:
    with served(sets, Settings(limit=1, threads=1)) as (url, service):
        service.desk.n_inside = 1  # somebody else is asking
        page = Page(driver, url)
        page.open("#item=heron+00")
        page.until(lambda: "has much to do" in page.notice())
        service.desk.n_inside = 0
        page.until(lambda: page.shows(sets, ["heron 00"]))
        assert page.notice() == ""


def test_late_answers__do_not_replace_newer_ones(driver: Any, sets: BayesianSets) -> None:
    slow = Slow(sets)
    with served(slow.sets, Settings(threads=2)) as (url, _):
        page = Page(driver, url)
        page.open("#item=heron+00&k=7")  # does not end yet
        page.until(lambda: slow.n_begun == 1)
        page.driver.execute_script("location.hash = '#item=otter+00&k=10'")
        page.until(lambda: page.shows(sets, ["otter 00"], 10))
        slow.go.set()
        page.driver.execute_async_script("setTimeout(arguments[0], 300)")
        assert page.shows(sets, ["otter 00"], 10)


def test_failure__is_told_in_a_sentence(driver: Any, sets: BayesianSets) -> None:
    slow = Slow(sets)
    slow.go.set()
    with served(slow.sets, Settings()) as (url, service):

        def broken(asked: Any) -> bytes:
            raise ZeroDivisionError

        page = Page(driver, url)
        whole = service._rank
        service._rank = broken  # type: ignore[method-assign]
        page.open("#item=heron+00")
        page.until(lambda: "log says more" in page.notice())
        service._rank = whole  # type: ignore[method-assign]
        page.find("#notice .link").click()
        page.until(lambda: page.shows(sets, ["heron 00"]))


# ---- how it looks --------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [360, 700, 1200])
@pytest.mark.parametrize("hash", ["", "#item=heron+00&item=" + "x" * 200, "#item=100%25+%2541/.."])
def test_layout__fits_the_width(page: Page, width: int, hash: str) -> None:
    page.open(hash, width)
    page.until(lambda: not hash or page.notice() or page.ranked())
    if page.ranked():
        page.find(".more").click()
    wide = page.driver.execute_script("return document.documentElement.scrollWidth")
    assert wide <= width


def test_layout__does_not_jump_as_answers_come(page: Page, sets: BayesianSets) -> None:
    def top(selector: str) -> float:
        script = "return document.querySelector(arguments[0]).getBoundingClientRect().top"
        return float(page.driver.execute_script(script, selector))

    before = top("#answer")
    page.type("heron 0")
    page.until(lambda: page.offered())
    assert top("#answer") == before
    page.type(keys().ENTER)
    page.until(lambda: page.shows(sets, ["heron 00"]))
    assert top("#answer") == before
    title = top("#ranking-title")
    page.add("violin 00", "violin 00")
    page.until(lambda: page.shows(sets, ["heron 00", "violin 00"]))
    assert (top("#answer"), top("#ranking-title")) == (before, title)


@pytest.mark.parametrize("dark", [False, True])
def test_colours__can_be_read_in_light_and_dark(page: Page, sets: BayesianSets, dark: bool) -> None:
    page.open("#item=heron+00&k=50", dark=dark)
    page.until(lambda: page.shows(sets, ["heron 00"], 50))
    selectors = ("h1", ".quiet", ".chip bdi", ".row.out .score", ".cut", ".link", ".mine", ".rank")
    for selector in selectors:
        ink, ground = page.driver.execute_script(_COLOURS, selector)
        assert contrast(ink, ground) >= 4.5, selector
    ground = page.driver.execute_script(_COLOURS, "h1")[1]
    assert (luminance(ground) < 0.1) is dark


_COLOURS = """
let element = document.querySelector(arguments[0]);
const numbers = (text) => text.match(/[\\d.]+/g).map(Number);
const ink = numbers(getComputedStyle(element).color).slice(0, 3);
for (; element; element = element.parentElement) {
  const ground = numbers(getComputedStyle(element).backgroundColor);
  if (ground.length === 3) return [ink, ground];
}
return [ink, [255, 255, 255]];
"""


def luminance(colour: list[float]) -> float:
    """Relative luminance as WCAG defines it."""
    parts = [value / 255 for value in colour]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: list[float], other: list[float]) -> float:
    brighter, darker = sorted((luminance(one), luminance(other)), reverse=True)
    return (brighter + 0.05) / (darker + 0.05)
