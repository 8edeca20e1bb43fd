import time

for step in range(1, 6):
    print(f"step={step} loss={1 / step:.3f} accuracy={1 - 0.5 / step:.3f}", flush=True)
    time.sleep(0.01)
