pytest_plugins = ["runqueue.testing.fixtures"]
