"""Mutation pass: small faults are put into decision modules, and the tests of these modules must notice."""
