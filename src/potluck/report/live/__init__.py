"""Serve a live page: the report's charts of run folders while they are written."""
