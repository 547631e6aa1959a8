"""Thin adapters to what others train and test with: `lightning`, `huggingface`, `testing` (pytest)."""
