-- The three tables of the storage model: one shape, three workloads.
--
-- Text is compared by bytes (COLLATE "C"), as names are everywhere in oqron: the
-- order of ids is the same in every mode and on every operating system, and no
-- upgrade of a locale library can corrupt an index.
--
-- Every key and index leads with project and environment, which is what the
-- rows are isolated by and what the tables may be distributed on.

CREATE TABLE ${records} (
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

CREATE TABLE ${jobs} (
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

CREATE TABLE ${runs} (
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

-- Indexes, each for a query that is published or that oqron runs itself.
--
-- On the records and jobs tables none is over a field of value: a single one would
-- end heap-only updates for every write to value. What is indexed there does not
-- change while a job is worked on.

-- "Every definition the app runs": by kind, which no key starts with.
CREATE INDEX ${records_kind}
  ON ${records} (project, environment, record_kind, namespace, id);

-- Pruning of what has expired; most rows never do, and take no room here.
CREATE INDEX ${records_exp}
  ON ${records} (project, environment, expires_at)
  WHERE expires_at IS NOT NULL;

-- "Dead-letter depth per queue", by an index-only scan. The kind of a row never
-- changes, so the condition costs an update nothing.
CREATE INDEX ${jobs_dlq}
  ON ${jobs} (project, environment, namespace)
  WHERE record_kind = 'dlq';

-- Recovery: what has no expiry is not finished. Reconcile and rebuild walk this in
-- the order of ids, whatever number of finished jobs waits for its retention.
CREATE INDEX ${jobs_open}
  ON ${jobs} (project, environment, namespace, id)
  WHERE record_kind = 'job' AND expires_at IS NULL;

-- Pruning of finished jobs.
CREATE INDEX ${jobs_exp}
  ON ${jobs} (project, environment, expires_at)
  WHERE expires_at IS NOT NULL;

-- "A specific run": the query names no namespace, so the primary key cannot serve it.
CREATE INDEX ${runs_id}
  ON ${runs} (project, environment, id);

-- "Failed runs, most recent first", and the same by name or module. The second
-- column is the expression of the ORDER BY, to the letter: an index on the text
-- would never be used for it. They are not partial, since the queries do not
-- mention record_kind.
CREATE INDEX ${runs_status}
  ON ${runs} (project, environment, (value ->> 'status'), ((value ->> 'startedAt')::numeric) DESC);

CREATE INDEX ${runs_name}
  ON ${runs} (project, environment, (value ->> 'name'), ((value ->> 'startedAt')::numeric) DESC);

CREATE INDEX ${runs_module}
  ON ${runs} (project, environment, (value ->> 'module'), ((value ->> 'startedAt')::numeric) DESC);

-- "The latest runs", and everything since a moment.
CREATE INDEX ${runs_started}
  ON ${runs} (project, environment, ((value ->> 'startedAt')::numeric) DESC);

-- "Retained log of one topic, newest first". This query does name the kind, so runs
-- take no room here.
CREATE INDEX ${runs_message}
  ON ${runs} (project, environment, namespace, ((value ->> 'publishedAt')::numeric) DESC)
  WHERE record_kind = 'message';

-- Pruning by expiry.
CREATE INDEX ${runs_exp}
  ON ${runs} (project, environment, expires_at)
  WHERE expires_at IS NOT NULL;

-- Pruning by age: the table is in the order of insertion, so a few bytes for each
-- range of pages are enough.
CREATE INDEX ${runs_age}
  ON ${runs} USING brin (inserted_at);
