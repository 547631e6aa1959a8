"""`theta0 explain`: the change that makes a network train. torch is imported inside the command."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from theta0.cli.console import HtmlOption, Tell, beside
from theta0.cli.options import Given, on_targets
from theta0.cli.scripts import Outcome, on_each

if TYPE_CHECKING:
    from theta0.targets import Target

_SECONDS = 120.0


@on_targets
def explain(
    given: Given,
    gradients: Annotated[float, typer.Option(help="Gradients at most.", min=1)] = 400.0,
    html: HtmlOption = None,
) -> None:
    """Find the change that makes it train, and prove it. Exit code: 0 it trains as it is, 1 not, 2 bad target."""

    def explained(t: "Target", tell: Tell) -> Outcome:
        options = {"budget": gradients, "seconds": given.seconds or _SECONDS, "progress": tell}
        return _explained(t, beside(html, t.number), options | given.read)

    on_each(given, "explaining", explained, files=(html,))


def _explained(t: "Target", html: Path | None, options: dict[str, Any]) -> Outcome:
    from theta0.explanation import explain as run
    from theta0.reports import explanation_document, explanation_report

    result = run(t.model, t.batches, t.loss, observed=t.observed, **t.training, **options)
    if html is not None:
        from theta0.reports import write_page

        write_page(html, result, target=t.name)
    return Outcome(
        lambda: explanation_document(result, target=t.name),
        lambda: explanation_report(result, target=t.name),
        0 if result.trains else 1,
    )
