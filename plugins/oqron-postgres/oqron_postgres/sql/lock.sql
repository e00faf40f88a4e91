-- Takes the locks of a batch in one order before its statements take them in theirs.
SELECT count(*)
FROM jsonb_to_recordset(CAST(:doc AS jsonb)) AS d(n text, i text)
CROSS JOIN LATERAL (
  SELECT 1
  FROM ${table} AS t
  WHERE t.project = :project AND t.environment = :environment
    AND t.namespace = d.n AND t.id = d.i
  OFFSET 0
  FOR UPDATE OF t
) AS r
