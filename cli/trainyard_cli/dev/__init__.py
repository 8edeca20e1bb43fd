"""Jobs that wait, with the code of a directory of this machine in them: `jobs dev`."""
