"""pytest_xjobs: the pytest plugin of xjobs."""
