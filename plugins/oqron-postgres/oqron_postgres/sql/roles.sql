-- Three roles with no more than they need. None may log in: grant them to those who do,
-- such as GRANT ${reader} TO grafana.
--
-- Run as a superuser, or as a role with CREATEROLE that owns the tables and may grant
-- on the schema (it owns the schema, or the database where that is public). May be
-- repeated. A role that is no superuser is made a member of ${migrator}, without which
-- it could neither give the tables away nor do this again.
--
-- The tables change their owner. A process that still logs in as the old one stops
-- working here, until somebody runs GRANT ${worker} TO that role.

BEGIN;

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
  IF NOT (SELECT rolsuper FROM pg_catalog.pg_roles WHERE rolname = current_user) THEN
    GRANT ${migrator} TO CURRENT_USER;
  END IF;
END
$$roles$$;

GRANT USAGE ON SCHEMA ${schema} TO ${reader}, ${worker};
GRANT USAGE, CREATE ON SCHEMA ${schema} TO ${migrator};

-- The worker opens storages, which reads what version the tables have.
GRANT SELECT ON ${meta} TO ${worker};
ALTER TABLE ${meta} OWNER TO ${migrator};
