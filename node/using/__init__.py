"""What was trained, put to use: text, losses, one file to hand on."""
