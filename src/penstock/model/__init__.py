"""The words that every room shares: ids, the error catalogue, limits. Imports nothing of ours."""
