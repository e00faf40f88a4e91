INSERT INTO ${meta} AS m (key, value)
VALUES (
  'schema',
  jsonb_build_object(
    'version', ${version},
    'appliedAt', floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint
  )
)
ON CONFLICT (key) DO UPDATE SET value = excluded.value;
