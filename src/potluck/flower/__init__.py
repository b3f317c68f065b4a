"""Other machines: the engine that carries jobs over Flower, nodes with data of their own, server and deployment."""
