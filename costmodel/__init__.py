"""What a placement costs: tasks, placements, measurements, and the models fitted to them."""
