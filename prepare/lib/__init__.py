"""What the scripts in prepare/ share. Which of these files does a new script need?

  inputs.py     always: the words of its command line, and the folder that it claims; files that are
                downloaded, or the user's copies of them; tar archives
  texts.py      to write a text dataset, or a test split on which language models are scored
  pictures.py   to write a dataset of pictures: small ones of one size, or large ones
  weights.py    to make a run directory of weights that others have published
  files.py      rarely, since texts.py and pictures.py call it: a folder that appears whole or not
                at all, arrays that grow, meta.json

Python starts a script with the script's own folder, prepare/, on sys.path. The lines below add the
root of the project. So a script imports from lib before it imports from engine/ and tasks/. If it
also imports numpy, a line `import lib` stands above that, because prepare_process says what to type
where a library is missing.
"""
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from engine.process import prepare_process  # noqa: E402 (from the root)

prepare_process()
