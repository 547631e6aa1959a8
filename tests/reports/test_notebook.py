"""A notebook that is executed shows pages; skipped where nbclient, nbformat or ipykernel is absent."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import report_cases as cases
from matplotlib import image as images

nbclient = pytest.importorskip("nbclient", reason="nbclient is not installed")
nbformat = pytest.importorskip("nbformat", reason="nbformat is not installed")
pytest.importorskip("ipykernel", reason="ipykernel is not installed")

CHROMIUM = shutil.which("chromium")
SWITCHES = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-sync",
    "--force-device-scale-factor=1",
)
CELLS = [
    "import torch, theta0; from torch import nn; torch.manual_seed(0);",
    "model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))\n"
    "batches = [(torch.randn(32, 8), torch.randint(3, (32,)))]\n"
    "diagnosis = theta0.diagnose(model, batches, 'cross_entropy', probe_steps=0)\ndiagnosis",
    "print(diagnosis)",
    "diagnosis.plot()",
]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of the client and of what it talks to the kernel with
def test_a_result_at_the_end_of_a_cell_is_its_page():
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in CELLS])
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": sys.version, "language": "python"}
    nbclient.NotebookClient(notebook, timeout=240).execute()
    _, shown, printed, drawn = (cell.outputs for cell in notebook.cells)
    data = shown[0]["data"]
    assert data["text/html"].startswith("<iframe ")
    assert "theta0 diagnosis" in data["text/html"]
    assert data["text/plain"].startswith("<Diagnosis: ")
    assert printed[0]["text"].count("\n") > 5
    assert "image/png" in drawn[0]["data"]


NOTEBOOKS = sorted((Path(__file__).parents[2] / "examples" / "notebooks").glob("*.ipynb"))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of the client and of what it talks to the kernel with
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_notebooks_among_the_examples_run(path):
    notebook = nbformat.read(path, as_version=4)
    nbclient.NotebookClient(notebook, timeout=240, resources={"metadata": {"path": str(path.parent)}}).execute()


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None or "CI" in os.environ, reason="chromium is not installed, or no browser in CI")
def test_the_frame_shows_the_page_and_leaves_the_notebook_its_styles(tmp_path):
    head = "<body style='margin:0; width:900px; background:#fff'><p style='height:60px; margin:0'></p>"
    page, picture = tmp_path / "notebook.html", tmp_path / "shown.png"
    page.write_text(head + cases.deep_sigmoid()._repr_html_() + "<p>After.</p>", encoding="utf-8")
    profile = f"--user-data-dir={tmp_path / 'profile'}"
    size = ["--window-size=900,900", f"--screenshot={picture}", page.as_uri()]
    subprocess.run([CHROMIUM, *SWITCHES, profile, *size], check=True, timeout=120, capture_output=True)
    shown = images.imread(picture)[..., :3]
    assert shown[:55].min() == 1.0  # the notebook's own ground, not the page's
    frame = shown[80:600, 20:860]
    assert frame.min() < 0.3  # text
    assert len({tuple(pixel) for pixel in frame.reshape(-1, 3).round(2).tolist()}) > 30
