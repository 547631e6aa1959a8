"""The trainers take seconds to import: the gate, which runs none of these slow tests, does not collect them either."""

SLOW = ("test_lightning.py", "test_huggingface.py")


def pytest_ignore_collect(collection_path, config):
    """With `-m "not slow"` these files are left out, unless one is named."""
    named = any(str(collection_path.name) in argument for argument in config.args)
    return True if collection_path.name in SLOW and config.option.markexpr == "not slow" and not named else None
