from env.maze import Maze

__all__ = ["Maze"]
