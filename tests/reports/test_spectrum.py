"""A change of spectrum on a terminal, as a figure and as data."""

import io
import json

import pytest
import torch
from rich.console import Console

from theta0.reports import spectrum_document, spectrum_report, write_spectrum_figure
from theta0.reports.spectrum import octaves
from theta0.spectra import Spectrum, SpectrumChange


def example() -> SpectrumChange:
    k = torch.arange(17.0)
    start, after = (Spectrum(k, torch.stack([height / (1 + k), 2 * height / (1 + k)]), "hann") for height in (1.0, 3.0))
    losses = {"no penalty": (1.0, 0.5), "l2:0.1": (1.0, 0.7)}
    return SpectrumChange((3, 9), start, {"no penalty": after, "l2:0.1": start}, losses, "sgd", 0.1)


def test_octaves_keep_all_the_power():
    spectrum = Spectrum(torch.arange(17.0), torch.rand(2, 17, generator=torch.Generator().manual_seed(0)))
    found = octaves(spectrum)
    assert list(found) == ["0", "1", "2", "3-4", "5-8", "9-16"]
    total = sum(value**2 for value in found.values())
    assert total == pytest.approx(spectrum.amplitudes.square().sum().item() / 2, rel=1e-6)


def test_the_table_names_every_training():
    console = Console(width=80, file=io.StringIO())
    console.print(spectrum_report(example(), target="my.py"))
    text = console.file.getvalue()
    for part in ("between samples 3 and 9", "start", "no penalty", "l2:0.1", "9-16", "2 steps of sgd at 0.1"):
        assert part in " ".join(text.split())


def test_the_document_is_json():
    document = json.loads(json.dumps(spectrum_document(example(), target="my.py"), allow_nan=False))
    assert document["between"] == [3, 9]
    assert len(document["frequencies"]) == len(document["start"][0]) == 17
    assert set(document["trained"]) == {"no penalty", "l2:0.1"}


@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_the_figure_is_written(tmp_path, suffix):
    path = tmp_path / "new" / f"spectrum.{suffix}"
    write_spectrum_figure(path, example())
    assert path.stat().st_size > 5000
