"""Measurements that README quotes: not tests, and run by nobody but `make bench`. Results lie in `bench/results/`."""
