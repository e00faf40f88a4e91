-- Set fields and append entries of live runs.
-- KEYS: active, then fields, logs and timeline of each run
-- ARGV: ms to live, then of each run: id, number of fields, of logs, of timeline
--       entries, and all of those
-- Answer: nothing

-- needs: _clock
local ttl = ARGV[1]
local a = 2
for k = 2, #KEYS, 3 do
  local id, fields, logs, timeline = ARGV[a], tonumber(ARGV[a + 1]), tonumber(ARGV[a + 2]), tonumber(ARGV[a + 3])
  a = a + 4
  -- The field that no run can have keeps the hash there while it has no other.
  redis.call('HSET', KEYS[k], '\0', now)
  for i = a, a + 2 * fields - 1, 2000 do
    redis.call('HSET', KEYS[k], unpack(ARGV, i, math.min(i + 1999, a + 2 * fields - 1)))
  end
  a = a + 2 * fields
  redis.call('PEXPIRE', KEYS[k], ttl)
  for list = 1, 2 do
    local count = list == 1 and logs or timeline
    for i = a, a + count - 1, 2000 do
      redis.call('RPUSH', KEYS[k + list], unpack(ARGV, i, math.min(i + 1999, a + count - 1)))
    end
    a = a + count
    redis.call('PEXPIRE', KEYS[k + list], ttl)
  end
  redis.call('ZADD', KEYS[1], now, id)
end
-- What expired by itself leaves the index with the next sign of life.
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now - tonumber(ttl))
redis.call('PEXPIRE', KEYS[1], ttl)
return 1
