-- The three tables of the storage model: one shape, three workloads.
--
-- Text is compared by bytes (COLLATE "C"), as names are everywhere in oqron: the
-- order of ids is the same in every mode and on every operating system, and no
-- upgrade of a locale library can corrupt an index.
--
-- Every key and index leads with project and environment, which is what the
-- rows are isolated by and what the tables may be distributed on.

CREATE TABLE IF NOT EXISTS ${records} (
  project      text   COLLATE "C" NOT NULL,
  environment  text   COLLATE "C" NOT NULL,
  namespace    text   COLLATE "C" NOT NULL,
  record_kind  text   COLLATE "C" NOT NULL,
  id           text   COLLATE "C" NOT NULL,
  value        jsonb  NOT NULL,
  inserted_at  bigint NOT NULL,
  expires_at   bigint,
  CONSTRAINT ${records_pkey} PRIMARY KEY (project, environment, namespace, id)
)
-- Small and rewritten often (pointers, pause state): room on the page keeps
-- updates off the indexes.
WITH (
  fillfactor = 70,
  autovacuum_vacuum_scale_factor = 0.05,
  autovacuum_analyze_scale_factor = 0.05
);

CREATE TABLE IF NOT EXISTS ${jobs} (
  project      text   COLLATE "C" NOT NULL,
  environment  text   COLLATE "C" NOT NULL,
  namespace    text   COLLATE "C" NOT NULL,
  record_kind  text   COLLATE "C" NOT NULL,
  id           text   COLLATE "C" NOT NULL,
  value        jsonb  NOT NULL,
  inserted_at  bigint NOT NULL,
  expires_at   bigint,
  CONSTRAINT ${jobs_pkey} PRIMARY KEY (project, environment, namespace, id)
)
-- Every job is written, updated a few times and deleted. A page that is less than
-- half full takes a job's next versions itself, as heap-only tuples, which is
-- what makes an update cheap; vacuum comes early and works fast, since most rows
-- are dead soon.
WITH (
  fillfactor = 45,
  autovacuum_vacuum_scale_factor = 0.02,
  autovacuum_vacuum_threshold = 1000,
  autovacuum_vacuum_cost_delay = 1,
  autovacuum_vacuum_insert_scale_factor = 0.1,
  autovacuum_analyze_scale_factor = 0.05,
  autovacuum_analyze_threshold = 1000
);

CREATE TABLE IF NOT EXISTS ${runs} (
  project      text   COLLATE "C" NOT NULL,
  environment  text   COLLATE "C" NOT NULL,
  namespace    text   COLLATE "C" NOT NULL,
  record_kind  text   COLLATE "C" NOT NULL,
  id           text   COLLATE "C" NOT NULL,
  value        jsonb  NOT NULL,
  inserted_at  bigint NOT NULL,
  expires_at   bigint,
  CONSTRAINT ${runs_pkey} PRIMARY KEY (project, environment, namespace, id),
  -- A text here would break the casts of everybody's dashboard, or, as "NaN",
  -- pass them and sort before every number.
  CONSTRAINT ${runs_hot} CHECK (
    coalesce(jsonb_typeof(value -> 'startedAt'), 'null') IN ('number', 'null')
    AND coalesce(jsonb_typeof(value -> 'publishedAt'), 'null') IN ('number', 'null')
  )
)
-- Appended and pruned in bulk: full pages, and a vacuum that follows the inserts
-- so that index-only scans and pruning stay cheap.
WITH (
  fillfactor = 95,
  autovacuum_vacuum_scale_factor = 0.05,
  autovacuum_vacuum_cost_delay = 1,
  autovacuum_vacuum_insert_scale_factor = 0.05,
  autovacuum_analyze_scale_factor = 0.02
);
