import re
from html.parser import HTMLParser

import pytest
import report_cases as cases

from theta0.reports import write_page
from theta0.reports.sources import SOURCES
from theta0.reports.wording import printable

VOID = {"meta", "link", "br", "hr", "img", "input"}
RESULTS = {
    "deep_sigmoid": cases.deep_sigmoid(),
    "healthy": cases.healthy(50),
    "empty": cases.empty(),
    "non_finite": cases.non_finite(),
    "hostile": cases.hostile(),
    "many_findings": cases.many_findings(),
    "kept": cases.kept(),
    "not_kept": cases.not_kept(),
    "untried": cases.untried(),
}


class Reader(HTMLParser):
    """Collects a page's text, tags and attributes, and insists that every element is closed in order."""

    def __init__(self):
        super().__init__()
        self.open, self.tags, self.attributes, self.text = [], [], [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes.extend(attrs)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes.extend(attrs)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def read(path):
    reader = Reader()
    reader.feed(path.read_text(encoding="utf-8"))
    reader.close()
    assert reader.open == []
    return reader, " ".join("".join(reader.text).split())


def findings_of(result):
    if isinstance(result, cases.Diagnosis):
        return result.findings
    return (*result.before.findings, *(result.after.findings if result.after else ()))


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """Each is written when a test first asks for it."""
    folder = tmp_path_factory.mktemp("pages") / "new"

    class Written(dict):
        def __missing__(self, name):
            self[name] = write_page(folder / f"{name}.html", RESULTS[name], target=cases.TARGET)
            return self[name]

    return Written()


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", RESULTS)
def test_page_parses_and_tells_everything(name, pages):
    reader, text = read(pages[name])
    assert cases.TARGET in text
    assert reader.tags.count("h1") == 1
    for finding in findings_of(RESULTS[name]):
        for part in (finding.code, finding.message, finding.source, finding.remedy, finding.layer):
            assert " ".join(printable(part).split()) in text


def test_consequences_are_folded_under_their_cause_with_a_line_that_is_seen(pages):
    html = pages["deep_sigmoid"].read_text(encoding="utf-8")
    cause, note = re.findall(r'<li class="finding .*?(?=<li class="finding|</ol>)', html, flags=re.DOTALL)
    lines = [" ".join(re.sub("<[^>]+>", " ", s).split()) for s in re.findall(r"<summary>.*?</summary>", cause)]
    assert lines == [
        "follows from it: 2 · error vanishing-gradients at hidden.18 (1.9e-7) and 18 further layers",
        "follows from it: 3 · error constant-output (3.1e-9)",
    ]
    assert "<details open" not in html
    assert "4 · note" in note


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", RESULTS)
def test_page_is_self_contained(name, pages):
    html = pages[name].read_text(encoding="utf-8")
    sources = {source.link for source in SOURCES if source.link}
    assert set(re.findall(r"https?://[^\s\"'<>]+", html)) <= sources | {
        "http://www.w3.org/2000/svg",
        "http://www.w3.org/1999/xlink",
    }
    reader, _ = read(pages[name])
    assert not {"script", "iframe", "img", "object", "embed", "base", "form"} & set(reader.tags)
    assert not [key for key, _ in reader.attributes if key.startswith("on")]
    links = [value for key, value in reader.attributes if key in {"href", "src", "xlink:href"}]
    assert all(link.startswith(("#", "data:,")) or link in sources for link in links)
    assert html.count("https://") == html.count('<a href="https://')  # a source is read on request, never loaded
    identifiers = [value for key, value in reader.attributes if key == "id"]
    assert len(identifiers) == len(set(identifiers))


@pytest.mark.slow
def test_figures_have_words_for_those_who_do_not_see_them(pages):
    reader, _ = read(pages["kept"])
    images = [value for key, value in reader.attributes if key == "aria-label"]
    assert reader.tags.count("figure") == 7
    assert sum("hidden.0" in label for label in images) >= 6
    assert any("held-out 0.172" in label for label in images)


def test_colours_follow_the_mode(pages):
    html = pages["kept"].read_text(encoding="utf-8")
    drawn = "".join(re.findall(r"<svg.*?</svg>", html, flags=re.DOTALL))
    assert set(re.findall(r"#[0-9a-fA-F]{6}\b", drawn)) == set()
    assert "prefers-color-scheme: dark" in html


def test_hostile_target_is_text(tmp_path):
    target = '"><script>x</script>{{ 1 }}\udc80\x1b[31m'
    _, text = read(write_page(tmp_path / "report.html", cases.empty(), target=target))
    assert printable(target) in text


@pytest.mark.slow
def test_same_result_same_page(tmp_path):
    first, second = (write_page(tmp_path / f"{i}.html", cases.kept(3), target="x.py").read_bytes() for i in (0, 1))
    assert first == second


def test_non_finite_numbers_are_said(pages):
    reader, text = read(pages["non_finite"])
    assert [t for t in reader.text if t in {"nan", "inf"}][:3] == ["nan", "nan", "inf"]  # loss, measured, threshold
    assert "cost: nan gradients" in text
