# What the scripts share. Python starts a script with its own folder, prepare/, on the path. This adds the project's
# root, for engine/ and tasks/.
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import engine  # noqa: E402, F401 (it says what to type where a library is missing)
