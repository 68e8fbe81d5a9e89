"""What eval.py computes."""
