-- Indexes, each for a query that is published or that oqron runs itself.
--
-- On the records and jobs tables none is over a field of value: a single one would
-- end heap-only updates for every write to value. What is indexed there does not
-- change while a job is worked on.

-- "Every definition the app runs": by kind, which no key starts with.
CREATE INDEX IF NOT EXISTS ${records_kind}
  ON ${records} (project, environment, record_kind, namespace, id);

-- Pruning of what has expired; most rows never do, and take no room here.
CREATE INDEX IF NOT EXISTS ${records_exp}
  ON ${records} (project, environment, expires_at)
  WHERE expires_at IS NOT NULL;

-- "Dead-letter depth per queue", by an index-only scan. The kind of a row never
-- changes, so the condition costs an update nothing.
CREATE INDEX IF NOT EXISTS ${jobs_dlq}
  ON ${jobs} (project, environment, namespace)
  WHERE record_kind = 'dlq';

-- Recovery: what has no expiry is not finished. Reconcile and rebuild walk this in
-- the order of ids, whatever number of finished jobs waits for its retention.
CREATE INDEX IF NOT EXISTS ${jobs_open}
  ON ${jobs} (project, environment, namespace, id)
  WHERE record_kind = 'job' AND expires_at IS NULL;

-- Pruning of finished jobs.
CREATE INDEX IF NOT EXISTS ${jobs_exp}
  ON ${jobs} (project, environment, expires_at)
  WHERE expires_at IS NOT NULL;

-- "A specific run": the query names no namespace, so the primary key cannot serve it.
CREATE INDEX IF NOT EXISTS ${runs_id}
  ON ${runs} (project, environment, id);

-- "Failed runs, most recent first", and the same by name or module. The second
-- column is the expression of the ORDER BY, to the letter: an index on the text
-- would never be used for it. They are not partial, since the queries do not
-- mention record_kind.
CREATE INDEX IF NOT EXISTS ${runs_status}
  ON ${runs} (project, environment, (value ->> 'status'), ((value ->> 'startedAt')::numeric) DESC);

CREATE INDEX IF NOT EXISTS ${runs_name}
  ON ${runs} (project, environment, (value ->> 'name'), ((value ->> 'startedAt')::numeric) DESC);

CREATE INDEX IF NOT EXISTS ${runs_module}
  ON ${runs} (project, environment, (value ->> 'module'), ((value ->> 'startedAt')::numeric) DESC);

-- "The latest runs", and everything since a moment.
CREATE INDEX IF NOT EXISTS ${runs_started}
  ON ${runs} (project, environment, ((value ->> 'startedAt')::numeric) DESC);

-- "Retained log of one topic, newest first". This query does name the kind, so runs
-- take no room here.
CREATE INDEX IF NOT EXISTS ${runs_message}
  ON ${runs} (project, environment, namespace, ((value ->> 'publishedAt')::numeric) DESC)
  WHERE record_kind = 'message';

-- Pruning by expiry.
CREATE INDEX IF NOT EXISTS ${runs_exp}
  ON ${runs} (project, environment, expires_at)
  WHERE expires_at IS NOT NULL;

-- Pruning by age: the table is in the order of insertion, so a few bytes for each
-- range of pages are enough.
CREATE INDEX IF NOT EXISTS ${runs_age}
  ON ${runs} USING brin (inserted_at);
