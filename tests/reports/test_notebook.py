"""A notebook that is executed shows pages; skipped where nbclient, nbformat or ipykernel is absent."""

import sys

import pytest

nbclient = pytest.importorskip("nbclient", reason="nbclient is not installed")
nbformat = pytest.importorskip("nbformat", reason="nbformat is not installed")
pytest.importorskip("ipykernel", reason="ipykernel is not installed")

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
