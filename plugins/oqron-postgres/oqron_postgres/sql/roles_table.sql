
-- ${table}
ALTER TABLE ${table} OWNER TO ${migrator};
REVOKE ALL ON ${table} FROM PUBLIC;
GRANT SELECT ON ${table} TO ${reader};
GRANT SELECT, INSERT, UPDATE, DELETE ON ${table} TO ${worker};

-- The owner is not held by policies, the others are.
ALTER TABLE ${table} ENABLE ROW LEVEL SECURITY;

DO $$policies$$
BEGIN
  IF NOT EXISTS (
    SELECT FROM pg_catalog.pg_policies
    WHERE schemaname = ${schema_text} AND tablename = ${table_text}
      AND policyname = 'oqron_all'
  ) THEN
    CREATE POLICY ${all_policy} ON ${table} TO ${worker} USING (true) WITH CHECK (true);
  END IF;
  IF EXISTS (
    SELECT FROM pg_catalog.pg_policies
    WHERE schemaname = ${schema_text} AND tablename = ${table_text}
      AND policyname = ${scope_policy_text}
  ) THEN
    DROP POLICY ${scope_policy} ON ${table};
  END IF;
END
$$policies$$;

CREATE POLICY ${scope_policy} ON ${table} FOR SELECT TO ${reader}
  USING (project = ${project} AND environment = ${environment});
