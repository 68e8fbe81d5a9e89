# What the scripts share. They start with prepare/ on the path; this adds the project's root, for engine/ and tasks/.
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
