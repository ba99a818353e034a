"""Reads for operators: deliveries, messages, requests, counts, throughput, search and metrics, with secrets redacted."""
