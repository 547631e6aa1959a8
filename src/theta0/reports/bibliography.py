"""The bibliography as a page, written from the sources: `python -m theta0.reports.bibliography > FILE`."""

import sys

from theta0.reports.sources import SOURCES, Source

_HEAD = """
# Bibliography

The publications that findings, docstrings and these pages name, by the key under which they name them. This page is
written from `src/theta0/reports/sources.py` by `make docs-bibliography`; a finding's source carries the same link in
reports.

| key | publication |
| --- | --- |
"""


def bibliography() -> str:
    """The page of all sources, as Markdown."""
    rows = [f"| {s.key} | {s.authors}. {_titled(s)}. {s.where}. |" for s in SOURCES]
    return _HEAD.lstrip() + "\n".join(rows) + "\n"


def _titled(source: Source) -> str:
    return f"[{source.title}]({source.link})" if source.link else f"*{source.title}*"


if __name__ == "__main__":
    sys.stdout.write(bibliography())
