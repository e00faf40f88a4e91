WITH clock AS MATERIALIZED (
  SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint AS ms
), found AS MATERIALIZED (
  SELECT
    d.o, r.namespace, r.record_kind, r.id, r.inserted_at,
    CASE WHEN g.ok AND NOT d.k THEN d.e ELSE r.expires_at END AS expires_at,
    CASE
      WHEN NOT g.ok THEN r.value
      WHEN d.u IS NULL AND d.c IS NULL AND d.a IS NULL THEN r.value || d.s
      ELSE (
        (r.value || d.s)
        || coalesce(
          (
            SELECT jsonb_object_agg(
              e.key,
              trunc(coalesce((r.value ->> e.key)::numeric, 0)) + (e.value)::numeric
            )
            FROM jsonb_each(d.c) AS e
          ),
          '{}'
        )
        || coalesce(
          (
            SELECT jsonb_object_agg(e.key, coalesce(r.value -> e.key, '[]') || e.value)
            FROM jsonb_each(d.a) AS e
          ),
          '{}'
        )
      ) - coalesce(d.u, '{}')
    END AS value,
    g.ok
  FROM jsonb_to_recordset(CAST(:doc AS jsonb)) AS d(
    o int, n text, i text,
    s jsonb, u text[], c jsonb, a jsonb,
    x jsonb, m text[],
    k boolean, e bigint
  )
  -- One probe of the primary key per id, whatever the statistics say: OFFSET 0 keeps
  -- the planner from turning the probes into a walk over the namespace. The lock makes
  -- sure that the row is still there when it is written below.
  CROSS JOIN LATERAL (
    SELECT t.namespace, t.record_kind, t.id, t.value, t.inserted_at, t.expires_at
    FROM ${table} AS t
    WHERE t.project = :project AND t.environment = :environment
      AND t.namespace = d.n AND t.id = d.i
      AND (t.expires_at IS NULL OR t.expires_at > (SELECT ms FROM clock))
    OFFSET 0
    FOR NO KEY UPDATE OF t
  ) AS r
  CROSS JOIN LATERAL (
    SELECT
      (d.x IS NULL OR NOT EXISTS (
        SELECT FROM jsonb_each(d.x) AS e
        WHERE (r.value -> e.key) IS DISTINCT FROM e.value
      ))
      AND (d.m IS NULL OR NOT r.value ?| d.m)
      AND (d.c IS NULL OR NOT EXISTS (
        SELECT FROM jsonb_each(d.c) AS e
        WHERE CASE
          WHEN NOT r.value ? e.key THEN false
          WHEN jsonb_typeof(r.value -> e.key) <> 'number' THEN true
          -- JSON has one kind of number: 1.0 is an integer.
          WHEN (r.value ->> e.key)::numeric % 1 <> 0 THEN true
          ELSE (r.value ->> e.key)::numeric + (e.value)::numeric
            NOT BETWEEN -9223372036854775808 AND 9223372036854775807
        END
      ))
      AND (d.a IS NULL OR NOT EXISTS (
        SELECT FROM jsonb_each(d.a) AS e
        WHERE jsonb_typeof(r.value -> e.key) <> 'array'
      )) AS ok
    OFFSET 0
  ) AS g
), written AS (
  -- The rows exist and are locked, so each of these meets its row: an update by key,
  -- which no plan can turn into a scan and which always sees the latest version.
  INSERT INTO ${table} AS t
    (project, environment, namespace, record_kind, id, value, inserted_at, expires_at)
  SELECT :project, :environment, f.namespace, f.record_kind, f.id, f.value,
    f.inserted_at, f.expires_at
  FROM found AS f
  WHERE f.ok
  ON CONFLICT (project, environment, namespace, id) DO UPDATE
  SET value = excluded.value, expires_at = excluded.expires_at
)
SELECT f.o, f.ok, f.inserted_at, f.expires_at, ${returning}
FROM found AS f
