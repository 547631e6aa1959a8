"""Results for people and for programs; every report is a function of a result."""
