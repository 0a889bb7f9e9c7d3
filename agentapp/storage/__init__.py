"""Everything kept in the database. Rows never leave this package; frozen values do."""
