"""Sources have links in reports and a place in the bibliography."""

import re
from pathlib import Path

import pytest
import report_cases as cases

import theta0
from theta0.reports.bibliography import bibliography
from theta0.reports.sources import SOURCES, named_in

HOME = Path(theta0.__file__).parent
ROOT = Path(__file__).parents[2]
CITED = r"[A-ZÉ][\w&,. éö-]*?(?:et al\.,?| (?:&|and) [A-Z]\w+,?) (?:\((?:19|20)\d\d\)|(?:19|20)\d\d)"
LISTS = ("sources", "bibliography")
KEYED = r"\b[a-z]+(?:19|20)\d\d[a-z]+\b"


def test_the_page_is_written_from_the_sources():
    page = ROOT / "docs" / "bibliography.md"
    if not page.is_file():
        pytest.skip("not in a checkout")
    assert page.read_text(encoding="utf-8") == bibliography(), "make docs-bibliography"


def test_whatever_is_cited_has_an_entry():
    files = [path for path in [*HOME.rglob("*.py"), *(ROOT / "docs").glob("*.md")] if path.stem not in LISTS]
    texts = [path.read_text(encoding="utf-8") for path in files]
    cited = {" ".join(found.split()) for text in texts for found in re.findall(f"{CITED}|{KEYED}", text)}
    known = {source.key for source in SOURCES}
    assert known & cited
    unknown = {found for found in cited if not any(source for _, source in named_in(found))}
    assert unknown == set()


def test_links_are_addresses_of_publications():
    links = [source.link for source in SOURCES if source.link]
    assert len(set(links)) == len(links)
    for link in links:
        assert re.fullmatch(
            r"https://doi\.org/10\.\d{4,}/\S+|https://arxiv\.org/abs/\d{4}\.\d{4,5}|https://(proceedings\.mlr\.press|www\.deeplearningbook\.org)\S*",
            link,
        )
    assert len({source.key for source in SOURCES}) == len(SOURCES)


def test_reports_carry_the_link_of_what_a_finding_rests_on(tmp_path):
    link = next(source.link for source in SOURCES if source.key == "kutsuna2019lcw")
    assert f"source: kutsuna2019lcw, {link}" in str(cases.deep_sigmoid())
    page = cases.deep_sigmoid().save_html(tmp_path / "page.html").read_text()
    assert f'<a href="{link}" target="_blank" rel="noopener noreferrer">kutsuna2019lcw</a>, Prop. 2' in page


@pytest.mark.parametrize("text", ["Lu et al. (2020), dying ReLU", "(Lu et al., 2020)", "Lu et al. 2020"])
def test_a_source_is_known_in_either_form(text):
    assert [source.key for _, source in named_in(text) if source] == ["Lu et al. (2020)"]
    assert "".join(piece for piece, _ in named_in(text)) == text
