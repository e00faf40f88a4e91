-- Three roles with no more than they need. Run as a superuser or as the owner of the
-- tables with CREATEROLE; may be repeated. None may log in: grant them to those who do,
-- such as GRANT ${reader} TO grafana.

DO $$roles$$
BEGIN
  IF NOT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = ${reader_text}) THEN
    CREATE ROLE ${reader} NOLOGIN;
  END IF;
  IF NOT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = ${worker_text}) THEN
    CREATE ROLE ${worker} NOLOGIN;
  END IF;
  IF NOT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = ${migrator_text}) THEN
    CREATE ROLE ${migrator} NOLOGIN;
  END IF;
END
$$roles$$;

GRANT USAGE ON SCHEMA ${schema} TO ${reader}, ${worker};
GRANT USAGE, CREATE ON SCHEMA ${schema} TO ${migrator};

-- The worker opens storages, which reads what version the tables have.
GRANT SELECT ON ${meta} TO ${worker};
ALTER TABLE ${meta} OWNER TO ${migrator};
