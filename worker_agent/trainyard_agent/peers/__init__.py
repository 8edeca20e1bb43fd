"""Parts of runs over several agents, from their placement to their start: may they begin?"""
