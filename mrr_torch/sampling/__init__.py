"""Sampled evaluation: negatives, what a sampled metric measures, and what it says of the full catalogue."""
