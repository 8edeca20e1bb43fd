class Mean:
    def __init__(self):
        self.value, self.count = 0.0, 0

    def add(self, value):
        self.count += 1
        self.value += (value - self.value) / self.count
