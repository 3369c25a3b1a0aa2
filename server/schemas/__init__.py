"""Request types, one file per API: shapes and bounds are checked here once; messages state limit and value."""
