"""One file for each question; results that are quoted anywhere lie in results/."""
