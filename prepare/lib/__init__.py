# What the scripts share. Python starts a script with its own folder, prepare/, on the path. This adds the project's
# root, for engine/ and tasks/.
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
