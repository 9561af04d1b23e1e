"""What is placed and trained on: table sets, synthetic workloads, session logs, readers."""
