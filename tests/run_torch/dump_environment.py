"""A worker that writes its environment to FOLDER/RANK.json, and fails in its first LIVES lives.

  dump_environment.py FOLDER LIVES
"""

import json
import os
import sys

folder, lives = sys.argv[1:]
with open(os.path.join(folder, os.environ["RANK"] + ".json"), "w", encoding="utf-8") as file:
    json.dump(dict(os.environ), file)
if int(os.environ["TORCHELASTIC_RESTART_COUNT"]) < int(lives):
    sys.exit(1)
