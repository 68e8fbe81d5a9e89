"""What analyze.py computes, and what it, sample.py and eval.py draw."""
