-- Name live runs by their last sign of life.
-- KEYS: active
-- ARGV: order (newest, oldest), limit, ms of silence, ms to live
-- Answer: the runs

-- needs: _clock
local dead = '(' .. string.format('%.0f', now - tonumber(ARGV[4]))
if ARGV[1] == 'newest' then
  return redis.call('ZREVRANGEBYSCORE', KEYS[1], '+inf', dead, 'LIMIT', 0, ARGV[2])
end
return redis.call('ZRANGEBYSCORE', KEYS[1], dead, now - tonumber(ARGV[3]), 'LIMIT', 0, ARGV[2])
