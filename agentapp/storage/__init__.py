"""Everything that is kept in the database. Rows never leave this package: it gives out frozen values."""
