"""What analyze.py computes and draws."""
