"""The sources' experiments, rebuilt on theta0's public functions.

A paper is a sub-package whose `ITEMS` maps a figure's or table's name to a function.
"""

PAPERS = {
    "furusho2020thesis": "theta0.papers.furusho2020thesis",
    "lee2023mmd": "theta0.papers.lee2023mmd",
    "kutsuna2019lcw": "theta0.papers.kutsuna2019lcw",
    "yang2022nio": "theta0.papers.yang2022nio",
}

__all__ = ["PAPERS"]
