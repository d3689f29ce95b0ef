"""What several suites need: an own PostgreSQL, a faulty network, the audit of every change of a run."""
