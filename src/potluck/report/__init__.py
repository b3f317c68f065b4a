"""Results for people: a self-contained HTML report and figures for print."""
