"""The PostgreSQL backend of oqron: the durable plane in three tables."""
