"""What the scripts in prepare/ share. A new script needs of it:

  inputs.py     always: the words of its command line, and the folder that it claims; files that are
                downloaded, or the user's copies of them; tar archives
  texts.py      to write a text dataset, or a test split on which language models are scored
  pictures.py   to write a dataset of pictures: small ones of one size, or large ones
  weights.py    to make a run directory of weights that others have published
  files.py      rarely, since the three files above call it: a folder that appears whole or not at
                all, arrays that grow, meta.json

Python starts a script with the script's own folder, prepare/, on the path. The lines below add the
root of the project. So a script imports from lib first, and then from engine/ and tasks/. If it
imports numpy itself, `import lib` comes before, because engine/ says what to type where a library
is missing.
"""
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import engine  # noqa: E402, F401 (for its check of the libraries)
