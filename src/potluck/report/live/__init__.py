"""The live page: the report's own charts, fed by run folders while they are written."""
