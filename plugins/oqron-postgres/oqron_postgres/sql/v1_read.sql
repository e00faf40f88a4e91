SELECT t.namespace, t.id, t.value, t.inserted_at, t.expires_at
FROM (
  SELECT
    (k.namespace)::text COLLATE "C" AS namespace,
    (k.id)::text COLLATE "C" AS id,
    (k.${value})::text AS value,
    ${inserted_at} AS inserted_at,
    ${expires_at} AS expires_at
  FROM ${kv} AS k
) AS t
WHERE (t.namespace, t.id) > (%(namespace)s::text, %(id)s::text)
ORDER BY t.namespace, t.id
LIMIT %(limit)s
