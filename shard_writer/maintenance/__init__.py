"""What is done with a finished set: verify, repair, reshard, show."""
