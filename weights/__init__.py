"""Trained networks. A run of train.py loads what is here only if it begins with trained weights, or
resizes positions as DINO does.

runs.py       run directories, opened and written
surgery.py    weights cut to size: another resolution, a shorter text, a new head
official.py   weights under the names of other people
generate.py   text from a trained network, with a cache of the tokens so far
"""
