import os
import numpy as np

text = "the quick brown fox jumps over the lazy dog " * 200
ids = np.frombuffer(text.encode(), dtype=np.uint8).astype(np.uint16)
ids.tofile(os.path.join(os.path.dirname(__file__), 'train.bin'))
print(f"train has {len(ids):,} tokens")
