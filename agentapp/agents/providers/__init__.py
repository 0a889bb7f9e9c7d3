"""Providers: the models that agents may ask."""
