WITH clock AS MATERIALIZED (
  SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint AS ms
), written AS (
  INSERT INTO ${table} AS t
    (project, environment, namespace, record_kind, id, value, inserted_at, expires_at)
  -- What all values have in common is sent once.
  SELECT :project, :environment, d.n, d.k, d.i, CAST(:same AS jsonb) || d.v,
    (SELECT ms FROM clock), d.e
  FROM jsonb_to_recordset(CAST(:doc AS jsonb))
    AS d(n text, k text, i text, v jsonb, e bigint)
  ON CONFLICT (project, environment, namespace, id) DO UPDATE
  SET value = excluded.value,
      record_kind = excluded.record_kind,
      -- What has expired is absent, so this is a new record.
      inserted_at = CASE
        WHEN t.expires_at <= (SELECT ms FROM clock) THEN excluded.inserted_at
        ELSE t.inserted_at
      END,
      expires_at = excluded.expires_at
  RETURNING t.namespace, t.id, t.inserted_at
)
SELECT
  (SELECT ms FROM clock),
  -- Only what was there before has an age of its own.
  (
    jsonb_agg(jsonb_build_array(namespace, id, inserted_at))
    FILTER (WHERE inserted_at <> (SELECT ms FROM clock))
  )::text
FROM written
