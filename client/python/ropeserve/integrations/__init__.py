"""What other packages need to take rotations or tables from here. Each module needs its package."""
