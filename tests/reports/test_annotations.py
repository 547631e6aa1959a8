"""Annotations of a pull request, read back as GitHub's runner reads them."""

import re
from dataclasses import replace
from urllib.parse import unquote

import pytest
import report_cases as cases

from theta0.diagnosis.results import Diagnosis
from theta0.reports import annotations


def read(line):
    level, properties, message = re.fullmatch(r"::(\w+) (.*?)::(.*)", line).groups()
    pairs = (pair.split("=", 1) for pair in properties.split(","))
    return level, {key: unquote(value) for key, value in pairs}, unquote(message)


def of(target="", **changes):
    finding = replace(cases.finding("gradient-cut", "net.0", 0.0, 0.5), **changes)
    (line,) = annotations(Diagnosis((), (finding,), 1.0), target=target)
    return line


def test_a_finding_stands_at_the_users_line():
    level, properties, message = read(of(source_line="src/model.py:42: x = x.detach()  # a, b: c"))
    assert level == "error"
    assert properties == {"file": "src/model.py", "line": "42", "title": "theta0: gradient-cut at net.0"}
    assert message.startswith("The number at net.0 says gradient-cut")


@pytest.mark.parametrize(("severity", "level"), [("error", "error"), ("warning", "warning"), ("note", "notice")])
def test_levels(severity, level):
    assert read(of(severity=severity))[0] == level


def test_without_a_line_it_stands_at_the_target_and_without_one_at_the_run():
    assert read(of("train.py"))[1]["file"] == "train.py"
    assert "line" not in read(of("train.py"))[1]
    assert read(of("train.py, optimizer 2 (Adam)"))[1]["file"] == "train.py"
    assert set(read(of())[1]) == {"title"}
    assert set(read(of("package.module:"))[1]) == {"title"}


@pytest.mark.parametrize("text", ["100 % of it", "a\nb\r\nc", "::error::injected", "50%3A", "a,b=c:d", "\x1b[31m"])
def test_nothing_in_a_finding_leaves_its_place(text):
    line = of(message=text, layer=text, source_line=f"{text.split()[0]}.py:1: x", remedy="")
    assert "\n" not in line
    assert "\r" not in line
    level, properties, message = read(line)
    assert level == "error"
    assert set(properties) == {"file", "line", "title"}
    assert message == text
