"""The transport, frame by frame, one file for each part of section 14."""
