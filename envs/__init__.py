"""The decision problem: placing tables on devices, as Gymnasium environments."""
