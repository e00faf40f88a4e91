-- What oqron knows about its own tables: the version of the schema, and what became
-- of the v1 layout. One row a fact.
CREATE TABLE IF NOT EXISTS ${meta} (
  key    text  COLLATE "C" NOT NULL,
  value  jsonb NOT NULL,
  CONSTRAINT ${meta_pkey} PRIMARY KEY (key)
);
