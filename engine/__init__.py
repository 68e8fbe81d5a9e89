"""What the loop calls: device, processes, optimizers, the files of a run, what it prints. All other
folders may call what is here, and nothing here imports from them."""
from pathlib import Path

HERE = Path(__file__).resolve().parent.parent   # the folder of the project
