"""Where data come from: one small file per publisher's format."""
