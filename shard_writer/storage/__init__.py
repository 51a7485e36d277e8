"""Files of this machine and objects in stores. Every other room sees paths and URLs."""
