"""The scenarios, one file for each part of spec/server.md."""
