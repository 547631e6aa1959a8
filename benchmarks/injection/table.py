"""Verdicts against the truth, for each kind of fault, with 95 % intervals."""

import math


def wilson(hits: int, count: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share."""
    if not count:
        return 0.0, 1.0
    z, share = 1.959964, hits / count
    middle, spread = share + z * z / (2 * count), z * math.sqrt(share * (1 - share) / count + z * z / (4 * count**2))
    low, high = (middle - spread) / (1 + z * z / count), (middle + spread) / (1 + z * z / count)
    return max(0.0, low), min(1.0, high)


def severe(row: dict) -> list[dict]:
    return [f for f in row.get("findings", ()) if f["severity"] != "note"]


def within_places(layer: str, places: list[str]) -> bool:
    """Whether a finding's layer is one of the modules, a part of one, or one of its parameters."""
    return any(layer == place or layer.startswith(place + ".") for place in places)


def counted(kind: str, entries: dict[str, dict], rows: dict[str, dict]) -> dict:
    """Counts of one kind of fault, or of the healthy starts."""
    found = {"kind": kind, "ill": 0, "detected": 0, "first right": 0, "any right": 0, "placed": 0, "module right": 0}
    found |= {"harmless": 0, "false alarms": 0, "wrong alarms": 0, "failed": 0, "single": 0, "single module right": 0}
    costs = []
    for name, row in rows.items():
        entry = entries.get(name, {"class": "harmless", "codes": []})
        said, codes = severe(row), entry.get("codes", [])
        costs += [row["cost"]] if "cost" in row else []
        found["failed"] += "failed" in row
        if entry["class"] == "ill":
            first = said[0] if said else {"code": "", "layer": ""}
            found["ill"] += 1
            found["detected"] += bool(said)
            found["first right"] += first["code"] in codes
            found["any right"] += any(f["code"] in codes for f in said)
            places = entry.get("places", [])
            if places:
                right = within_places(first["layer"], places)
                found["placed"] += 1
                found["module right"] += right
                found["single"] += entry.get("single", False)
                found["single module right"] += right and entry.get("single", False)
        else:
            found["harmless"] += 1
            found["false alarms"] += bool(said)
            right = bool(said) and entry.get("structural", False) and said[0]["code"] in codes
            found["wrong alarms"] += bool(said) and not right
    found["mean cost"] = round(sum(costs) / len(costs), 1) if costs else 0.0
    return found


def summary(entries: dict[str, dict], rows: dict[str, dict], held_out: list[str]) -> dict:
    """Counts of each kind and of all; kinds that are held out are not in the totals."""
    by_kind: dict[str, dict[str, dict]] = {}
    for name, row in rows.items():
        if name in entries or name.split("/")[2] == "healthy":
            by_kind.setdefault(name.split("/")[2], {})[name] = row
    kinds = {kind: counted(kind, entries, part) for kind, part in sorted(by_kind.items())}
    open_ = {n: r for n, r in rows.items() if n.split("/")[2] in kinds and n.split("/")[2] not in held_out}
    hidden = {n: r for n, r in rows.items() if n.split("/")[2] in held_out}
    classes = [e["class"] for e in entries.values()]
    return {
        "kinds": kinds,
        "all": counted("all", entries, open_),
        "held out": counted("held out", entries, hidden) if hidden else None,
        "classes": {c: classes.count(c) for c in ("ill", "harmless", "between", "absent")},
        "held out kinds": held_out,
    }


def _share(hits: int, count: int) -> str:
    if not count:
        return "–"
    low, high = wilson(hits, count)
    return f"{hits}/{count} ({100 * low:.0f}–{100 * high:.0f} %)"


def _line(title: str, row: dict) -> str:
    cells = [
        title,
        _share(row["detected"], row["ill"]),
        _share(row["first right"], row["ill"]),
        _share(row["module right"], row["placed"]),
        _share(row["false alarms"], row["harmless"]),
        _share(row["wrong alarms"], row["harmless"]),
        str(row["mean cost"]),
    ]
    return "| " + " | ".join(cells) + " |"


def markdown(result: dict, half: str) -> str:
    """A table for the documentation: a row for each kind, then all of them."""
    head = "| fault | detected | first finding right | module right | alarms on harmless | of them wrong | gradients |"
    lines = [head, "| --- | --- | --- | --- | --- | --- | --- |"]
    hidden = result["held out kinds"]
    lines += [_line(f"{k} (held out)" if k in hidden else k, row) for k, row in result["kinds"].items()]
    lines.append(_line("**all, but for kinds held out**", result["all"]))
    if result["held out"]:
        lines.append(_line("**kinds held out**", result["held out"]))
    total, classes = result["all"], result["classes"]
    lines += [
        "",
        f"Half: {half}. Injections: {classes['ill']} ill, {classes['harmless']} harmless, {classes['between']} between "
        f"(left out), {classes['absent']} that raise (left out). Diagnoses that failed or ran out of time: "
        f"{total['failed']}. One-module faults of values: module right "
        f"{_share(total['single module right'], total['single'])}. An alarm on a harmless injection is wrong unless "
        "its first finding names a fault of the program (a path that is cut, a loss that does not fit) that is there. "
        "In brackets: Wilson's 95 % intervals.",
    ]
    return "\n".join(lines) + "\n"
