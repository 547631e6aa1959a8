"""What a measurement says about a claim of a source, in the words of an item's line."""


def verdict(holds: bool, claim: str) -> str:
    """Whether a claim was found.

    >>> verdict(2 > 1, "it grows")
    'it grows, as in the source'
    >>> verdict(2 > 3, "it grows")
    'unlike in the source, where it grows'
    """
    return f"{claim}, as in the source" if holds else f"unlike in the source, where {claim}"
