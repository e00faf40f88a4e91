-- Stop claims.
-- KEYS: paused, and the registry of queues unless it lives in another slot
-- ARGV: queue

local clock = redis.call('TIME')
-- A write that frees memory lets the rest pass under `maxmemory`: whoever steers a queue
-- must be able to when memory is short.
redis.call('DEL', KEYS[1])
redis.call('SET', KEYS[1], '1')
if KEYS[2] then
  redis.call('ZADD', KEYS[2], clock[1] * 1000 + math.floor(clock[2] / 1000), ARGV[1])
end
return 1
