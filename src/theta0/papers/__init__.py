"""The sources' experiments, rebuilt on theta0's public functions.

A paper is a sub-package whose `ITEMS` maps a figure's or table's name to a function.
"""

PAPERS = {
    "furusho2020thesis": "theta0.papers.furusho2020thesis",
    "kutsuna2019lcw": "theta0.papers.kutsuna2019lcw",
    "yang2022nio": "theta0.papers.yang2022nio",
}

__all__ = ["PAPERS"]
