from env import Maze

import numpy as np
from tqdm import trange

rng = np.random.default_rng(0)
maze = Maze()
q = np.zeros((maze.length + 1, 2))
for episode in trange(50):
    state, done = maze.reset(), False
    while not done:
        action = int(rng.integers(2)) if rng.random() < 0.2 else int(q[state].argmax())
        after, reward, done = maze.step(action)
        q[state, action] += 0.5 * (reward + 0.9 * q[after].max() * (not done) - q[state, action])
        state = after
np.save("q.npy", q)
print("goes right:", bool((q[:-1].argmax(1) == 1).all()))
